"""The self-test of a model before its trial."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Stub
from typing import Literal

import msgspec
import numpy as np
import pytest
from support.images import encode
from support.impure_models import dropout_in_training, dynamically_quantised, softmax_over_rows
from support.sample_bundles import detector_bundle
from support.updates import bundle_at

from bench.support.bundles import artefact, fed_by, model, write_manifest
from firstline.workbench.golden import answered_golden, read_inputs
from firstline_core.bundle.golden import (
    GOLDEN_NAME,
    GoldenAnswers,
    GoldenInput,
    encode_golden,
    golden_input,
    read_golden,
)
from firstline_core.bundle.manifest import MANIFEST_NAME, Golden, encode_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import IntegrityError, SelfTestError
from firstline_core.processing.steps import BoxRows, InputSpec, Softmax, Suppress
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES
from firstline_edge.fleet.updates.trial import AgentServing, self_test
from firstline_edge.models.loading import load_bundle
from firstline_edge.models.models import DeviceModel
from firstline_edge.models.workers import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, 1, SYSTEM_CLOCK)
    yield workers
    workers.close()


def held_with(
    folder: Path, workers: Workers, outputs: tuple[float, float], shape: tuple[int, ...] = (4,)
) -> DeviceModel:
    """A model whose two classes are always as likely, and what its maker says of that."""
    bundle_at(folder, 1)
    answers = GoldenAnswers(
        {"x": GoldenInput((np.zeros(4, np.float32).tobytes(),), shape)}, {"edge": {PROBABILITIES: [list(outputs)]}}
    )
    (folder / GOLDEN_NAME).write_bytes(encode_golden(answers))
    manifest = open_bundle(folder).manifest
    manifest = msgspec.structs.replace(manifest, golden=Golden(artefact(folder / GOLDEN_NAME, folder), 0.01))
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return load_bundle(folder, RuntimeOptions(), workers)


def test_equal_golden_answers_pass(tmp_path: Path, workers: Workers) -> None:
    self_test(held_with(tmp_path / "a", workers, (0.505, 0.495)), None)


def test_different_golden_answers_fail(tmp_path: Path, workers: Workers) -> None:
    with pytest.raises(SelfTestError, match=r"differ by 0\.1, and 0\.01 is allowed"):
        self_test(held_with(tmp_path / "a", workers, (0.6, 0.4)), None)


def test_damaged_golden_inputs_fail(tmp_path: Path, workers: Workers) -> None:
    with pytest.raises((SelfTestError, IntegrityError)):
        self_test(held_with(tmp_path / "a", workers, (0.5, 0.5), (2, 2)), None)
    with pytest.raises(IntegrityError):
        self_test(held_with(tmp_path / "b", workers, (0.5, 0.5), (3,)), None)


async def test_a_bundle_answers_only_under_its_own_name(tmp_path: Path, workers: Workers) -> None:
    serving = AgentServing(reloading=Stub(), answered=Stub(), read_hardware=Stub())
    with pytest.raises(IntegrityError, match="What is to answer as other calls itself"):
        await serving.replace("other", held_with(tmp_path / "a", workers, (0.5, 0.5)))


def test_a_much_slower_model_fails(tmp_path: Path, workers: Workers) -> None:
    base = held_with(tmp_path / "a", workers, (0.5, 0.5))
    assert base.edge is not None
    slow = dataclasses.replace(base.edge, row_ms=250.0)
    with pytest.raises(SelfTestError, match="takes 250 ms a row"):
        self_test(DeviceModel(base.bundle, slow), DeviceModel(base.bundle, dataclasses.replace(base.edge, row_ms=20.0)))
    self_test(DeviceModel(base.bundle, slow), DeviceModel(base.bundle, dataclasses.replace(base.edge, row_ms=26.0)))


def test_a_model_is_compared_with_the_best_running_variant(tmp_path: Path, workers: Workers) -> None:
    """A hot device answers by its cheapest variant, while an update brings the best one too."""
    model = held_with(tmp_path / "a", workers, (0.5, 0.5))
    assert model.edge is not None
    slow, cheapest = (dataclasses.replace(model.edge, row_ms=row_ms) for row_ms in (250.0, 20.0))
    self_test(DeviceModel(model.bundle, slow), DeviceModel(model.bundle, cheapest, variants=Stub(best_row_ms=250.0)))


def test_the_golden_answers_of_each_held_variant_are_tested(tmp_path: Path, workers: Workers) -> None:
    model, other = (held_with(tmp_path / name, workers, (first, 1 - first)) for name, first in (("a", 0.5), ("b", 0.6)))
    with pytest.raises(SelfTestError, match=r"differ by 0\.1, and 0\.01 is allowed"):
        self_test(dataclasses.replace(model, variants=Stub(loaded=(model, other))), None)


def test_a_model_with_another_input_fails(tmp_path: Path, workers: Workers) -> None:
    model = held_with(tmp_path / "a", workers, (0.5, 0.5))

    def taking(**changes: object) -> DeviceModel:
        spec = msgspec.structs.replace(model.manifest.inputs[0], **changes)
        edge = (fed_by(model.manifest.edge[0], (spec,)),)
        manifest = msgspec.structs.replace(model.manifest, inputs=(spec,), edge=edge)
        return DeviceModel(dataclasses.replace(model.bundle, manifest=manifest), model.edge)

    for before in (taking(name="image"), taking(datatype="UINT8"), taking(shape=(-1, 5)), taking(shape=(-1, -1))):
        with pytest.raises(SelfTestError, match="another name"):
            self_test(model, before)
    self_test(taking(shape=(-1, -1)), taking(shape=(-1, 4)))  # golden answers of four values, and any are taken


def test_a_bundle_without_a_usable_variant_fails(tmp_path: Path, workers: Workers) -> None:
    model = held_with(tmp_path / "a", workers, (0.5, 0.5))
    with pytest.raises(SelfTestError, match="does not run here: no runtime"):
        self_test(DeviceModel(model.bundle, None, "no runtime"), None)


def detector_at(folder: Path, workers: Workers, score: float, golden_score: float, brighter: float) -> DeviceModel:
    """A detector that is 0.3 sure of its golden image; its golden answer is of another operating score and image."""
    folder.mkdir()
    bundle = detector_bundle(folder, BoxRows(), Suppress(golden_score))
    picture = folder / "golden.png"
    picture.write_bytes(_grey(0.3 + brighter))
    golden = answered_golden(bundle, read_inputs([picture], bundle.manifest), RuntimeOptions())
    if brighter:
        answers = read_golden(bundle, golden.artefact)
        darker = msgspec.structs.replace(answers, inputs={"image": GoldenInput((_grey(0.3),))})
        (folder / GOLDEN_NAME).write_bytes(encode_golden(darker))
        golden = Golden(artefact(folder / GOLDEN_NAME, folder), golden.tolerance)
    detector_bundle(folder, BoxRows(), Suppress(score), golden=golden)
    return load_bundle(folder, RuntimeOptions(), workers)


def _grey(brightness: float) -> bytes:
    return encode(np.full((8, 16, 3), round(255 * brightness), np.uint8))


@pytest.mark.parametrize(("score", "golden_score"), [(0.25, 0.25), (0.25, 0.35), (0.35, 0.25)])
def test_boxes_may_cross_operating_score(tmp_path: Path, workers: Workers, score: float, golden_score: float) -> None:
    self_test(detector_at(tmp_path / "equal", workers, score, golden_score, 0.0), None)
    with pytest.raises(SelfTestError, match=r"differ by 0\.0\d+, and 0\.01 is allowed"):
        self_test(detector_at(tmp_path / "brighter", workers, score, golden_score, 0.04), None)


def impure_bundle(
    folder: Path, write: Callable[[Path], Path], workers: Workers, batch: Literal[1] | None = None
) -> DeviceModel:
    """A bundle that says how its model runs, and has golden inputs without answers."""
    folder.mkdir()
    edge = model(write(folder / "edge.onnx"), folder, batch=batch, postprocess=(Softmax(),))
    rows = np.random.default_rng(1).standard_normal((16, 4)).astype(np.float32) * 2
    golden = GoldenAnswers({"x": golden_input(rows)}, {})
    (folder / GOLDEN_NAME).write_bytes(encode_golden(golden))
    spec = InputSpec("x", "FP32", (-1, 4))
    write_manifest(
        folder, [edge], ("a", "b", "c"), inputs=(spec,), golden=Golden(artefact(folder / GOLDEN_NAME, folder), 0.01)
    )
    return load_bundle(folder, RuntimeOptions(), workers)


@pytest.mark.parametrize("write", [softmax_over_rows, dynamically_quantised])
def test_dependent_rows_fail_unless_run_alone(tmp_path: Path, workers: Workers, write: Callable[[Path], Path]) -> None:
    with pytest.raises(SelfTestError, match=r"differently .* when it runs with other rows.*`batch: 1`"):
        self_test(impure_bundle(tmp_path / "together", write, workers), None)
    self_test(impure_bundle(tmp_path / "alone", write, workers, batch=1), None)


@pytest.mark.parametrize("batch", [None, 1])
def test_an_answer_that_chance_decides_fails(tmp_path: Path, workers: Workers, batch: Literal[1] | None) -> None:
    with pytest.raises(SelfTestError, match=r"differently .* when it runs alone a second time: Dropout"):
        self_test(impure_bundle(tmp_path / "bundle", dropout_in_training, workers, batch), None)
