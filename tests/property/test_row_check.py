"""The check for independent rows on constructed graphs; `make -C bench fuzz` has 5,000 of them."""

from contextlib import closing, suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.images import noise
from support.sample_bundles import colour_bundle

from bench.fuzzing.graphs import WIDTH, GraphInput, check_graph, graph_input, loaded_graph
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.errors import InferenceError
from firstline_core.processing.steps import Detrend, PreStep, Scale, Standardize
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Arrays, join_rows, row_count, take_rows

NUMBERS = range(60)
FIRST: list[list[PreStep]] = [[], [Standardize()], [Scale(tuple(range(WIDTH)), tuple(range(1, WIDTH + 1)))]]
STEPS: list[PreStep] = [Detrend(), Detrend("constant"), Scale((0.5,), (2.0,))]


def graph(number: int) -> GraphInput:
    return graph_input(Random(f"7 {number}"))


def test_the_graphs_differ() -> None:
    found = [graph(number) for number in NUMBERS]
    assert {one.depends_on for one in found} == {"nothing", "batch", "run"}
    assert {one.runtime for one in found} == {"onnx", "tflite"}
    assert len({block for one in found for block in one.blocks}) > 15


@pytest.mark.parametrize("number", NUMBERS)
def test_the_check_finds_what_a_graph_was_built_to_depend_on(number: int) -> None:
    with suppress(InferenceError):  # the check agrees with the construction, or raises AssertionError
        assert check_graph(graph(number)).depends_on == "nothing"


@pytest.mark.parametrize("number", NUMBERS)
def test_rows_prepared_alone_equal_rows_prepared_together(number: int) -> None:
    random = Random(number)
    steps = [*random.choice(FIRST), *random.sample(STEPS, random.randint(0, 2))]
    with loaded_graph(graph(number), *steps) as (_, loaded, rows):
        compare(loaded, rows, random)


def test_images_prepared_alone_equal_images_prepared_together(tmp_path: Path) -> None:
    random = Random(0)
    bundle = colour_bundle(tmp_path)
    images = [noise(at, random.randint(1, 40)) for at in range(12)]
    with closing(load_model(bundle, bundle.manifest.models[0], RuntimeOptions())) as loaded:
        compare(loaded, {"image": np.array(images, object)}, random)


def compare(loaded: LoadedModel, rows: Arrays, random: Random) -> None:
    everything = list(range(row_count(rows)))
    for positions in [everything, everything[::-1], *(random.choices(everything, k=k) for k in (3, 7, 32))]:
        alone = join_rows([loaded.prepare(take_rows(rows, [at])) for at in positions])
        together = loaded.prepare(take_rows(rows, positions))
        assert list(alone) == list(together)
        for name, array in together.items():
            assert alone[name].dtype == array.dtype
            np.testing.assert_array_equal(alone[name], array)
