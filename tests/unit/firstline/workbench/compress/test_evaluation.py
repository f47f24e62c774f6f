"""Certificates of several candidates together, and images that do not fit."""

import shutil
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.images import encode
from support.sample_bundles import COLOURS, colour_bundle, number_bundle, solid
from support.table_models import INPUTS, table_bundle

from firstline.workbench.certify import Terms
from firstline.workbench.compress.compression import promise_of
from firstline.workbench.compress.evaluation import measured_costs, preprocessed_rows, proved
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.event_promises import EventBound
from firstline.workbench.evidence import Evidence
from firstline.workbench.selection import EdgeRows
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES

_DIGITS = Path(__file__).parents[5] / "models/digits/bundle"
_DELTA, _EPSILON, _ROWS, _AMONG = 0.1, 0.1, 199, 6


def _terms(epsilon: float, delta: float) -> Terms:
    return Terms(epsilon, delta, score="bundle", select_fraction=0.0)


def _evidence(bundle: Bundle, random: np.random.Generator) -> Evidence:
    """Evidence of a variant that just violates the contract, with equal scores except for one row."""
    model = bundle.manifest.edge[0]
    wrong = random.random(_ROWS) < _EPSILON + 0.001
    probabilities = np.full((_ROWS, 10), 0.05, np.float32)
    probabilities[:, 0] = 0.55
    return Evidence(
        model,
        EdgeRows(bundle.manifest.task, {PROBABILITIES: probabilities}, {}),
        np.append(np.full(_ROWS - 1, 0.9), 0.1),
        _full(wrong),
        None,
    )


def _full(labels: np.ndarray) -> dict[str, np.ndarray]:
    return {PROBABILITIES: np.eye(10, dtype=np.float32)[labels.astype(np.int64)]}


def test_several_certificates_share_one_confidence() -> None:
    bundle, random = open_bundle(_DIGITS), np.random.default_rng(0)
    trials = 150
    broken = {1: 0, _AMONG: 0}
    for _ in range(trials):
        each = [_evidence(bundle, random) for _ in range(_AMONG)]
        for among in broken:
            found = [proved(bundle, one, _terms(_EPSILON, _DELTA), among=among) for one in each]
            broken[among] += any(one.certificate is not None for one in found)
    assert broken[_AMONG] <= _DELTA * trials
    assert broken[1] > 1.5 * _DELTA * trials  # each by itself: one of them is too often wrong


def test_a_certificate_states_the_joint_confidence() -> None:
    bundle = open_bundle(_DIGITS)
    evidence = _evidence(bundle, np.random.default_rng(1))
    sure = replace(evidence, full=_full(np.zeros(_ROWS)))
    alone, among = (proved(bundle, sure, _terms(0.1, 0.1), among=count).certificate for count in (1, 4))
    assert among.delta == alone.delta == 0.1
    assert among.risk_upper > alone.risk_upper


def test_a_score_without_information_certifies_nothing() -> None:
    bundle = open_bundle(_DIGITS)
    sure = replace(_evidence(bundle, np.random.default_rng(1)), full=_full(np.zeros(_ROWS)))
    found = proved(bundle, replace(sure, scores=np.full(_ROWS, 0.9)), _terms(0.1, 0.1))
    assert (found.certificate, found.result.certified, found.result.kept) == (None, False, 0)


def test_certificates_about_events_share_the_delta_of_each() -> None:
    bundle = open_bundle(_DIGITS)
    missed = f"missed {bundle.manifest.labels[0]}"
    sure = replace(_evidence(bundle, np.random.default_rng(1)), full=_full(np.zeros(_ROWS)))
    terms = _terms(0, 0).about({missed: EventBound(0.1, 0.1)})
    alone, among = (proved(bundle, sure, terms, among=count).certificate for count in (1, 4))
    assert among.delta == among.events[missed].delta == alone.events[missed].delta == 0.1
    assert among.events[missed].risk_upper == pytest.approx(1 - (0.1 / 4) ** (1 / _ROWS))
    assert alone.events[missed].risk_upper == pytest.approx(1 - 0.1 ** (1 / _ROWS))


def _data(folder: Path, *contents: bytes) -> Dataset:
    (folder / "images").mkdir(parents=True)
    for number, content in enumerate(contents):
        (folder / f"images/{number}.png").write_bytes(content)
    return open_dataset(folder)


def _rows(bundle: Bundle, dataset: Dataset, limit: int | None = None) -> np.ndarray:
    model = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    try:
        return preprocessed_rows(model, dataset, (bundle.manifest.inputs[0],), limit)
    finally:
        model.close()


def test_an_unfitting_image_is_named(tmp_path: Path) -> None:
    good, larger = encode(solid(0)), encode(solid(0, 8))
    resized = colour_bundle(tmp_path)
    with pytest.raises(ConfigError, match=r"1\.png does not fit the bundle: .*neither JPEG nor PNG"):
        _rows(resized, _data(tmp_path / "bad", good, b"no image"))
    assert len(_rows(resized, _data(tmp_path / "sizes", good, larger))) == 2
    free = colour_bundle(tmp_path / "free", size="side", resize=False)
    with pytest.raises(ConfigError, match=r"1\.png becomes a row of shape \[3, 8, 8\].*preprocessing that resi"):
        _rows(free, _data(tmp_path / "other", good, larger))


def test_only_selected_images_are_read(tmp_path: Path) -> None:
    bundle = colour_bundle(tmp_path)
    dataset = _data(tmp_path / "data", encode(solid(0)), b"no image", encode(solid(2)), b"no image")
    found = _rows(bundle, dataset, 2)
    assert [COLOURS[row.mean(axis=(1, 2)).argmax()] for row in found] == ["red", "blue"]


def test_mapped_rows_use_little_memory(tmp_path: Path) -> None:
    bundle = colour_bundle(tmp_path, size="side", resize=False)
    dataset = _data(tmp_path / "data", *(encode(solid(at % 3, 64)) for at in range(60)))
    shutil.make_archive(str(tmp_path / "data/images"), "zip", tmp_path / "data/images")
    shutil.rmtree(tmp_path / "data/images")  # a file's reader makes room for the largest image that there may be
    dataset = open_dataset(tmp_path / "data")
    model = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    inputs = (bundle.manifest.inputs[0],)
    try:
        expected = preprocessed_rows(model, dataset, inputs)
        tracemalloc.start()
        mapped = preprocessed_rows(model, dataset, inputs, place=tmp_path / "rows")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        model.close()
    assert np.array_equal(mapped, expected)
    assert type(mapped) is np.ndarray
    assert (tmp_path / "rows").stat().st_size == expected.nbytes
    assert peak_bytes < expected.nbytes / 2


def test_texts_are_not_mapped(tmp_path: Path) -> None:
    """A mapped file would hold the addresses of strings that no longer exist."""
    bundle = table_bundle(tmp_path / "bundle")
    full = bundle.manifest.full
    assert full is not None
    texts_first = msgspec.structs.replace(full, inputs=full.inputs[::-1])
    (tmp_path / "data.csv").write_text("a,b,c,label\n1,2,red,0\n3,4,blue,1\n")
    dataset = open_dataset(tmp_path / "data.csv", inputs=[spec.name for spec in INPUTS])
    with closing(load_model(bundle, texts_first, RuntimeOptions())) as model:
        rows = preprocessed_rows(model, dataset, INPUTS, place=tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    assert rows.tolist() == [["red"], ["blue"]]


def test_a_model_of_several_inputs_is_timed(tmp_path: Path) -> None:
    bundle = table_bundle(tmp_path / "bundle")
    (tmp_path / "data.csv").write_text("a,b,c,label\n1,2,red,0\n")
    dataset = open_dataset(tmp_path / "data.csv", inputs=[spec.name for spec in INPUTS])
    found = measured_costs(bundle, bundle.manifest.models, dataset, RuntimeOptions())
    assert found.keys() == {"edge", "full"} and all(cost.latency_ms for cost in found.values())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is full, as Linux has it")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    bundle = colour_bundle(tmp_path)
    model = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    try:
        with pytest.raises(OSError, match="No space left"):
            preprocessed_rows(
                model, _data(tmp_path / "data", encode(solid(0))), (bundle.manifest.inputs[0],), place=Path("/dev/full")
            )
    finally:
        model.close()


def test_a_bundle_of_numbers_cannot_be_compressed_with_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="preprocessing that starts with decode"):
        _rows(number_bundle(tmp_path), _data(tmp_path / "data", encode(solid(0))))


def test_a_stream_promise_is_not_replaced_silently() -> None:
    manifest = open_bundle(_DIGITS).manifest
    assert promise_of(manifest, None, None, {}).epsilon == 0.015
    first = manifest.edge[0]
    assert first.certificate is not None
    stream = msgspec.structs.replace(first.certificate, contract="stream", audit_epsilon=None)
    narrower = msgspec.structs.replace(
        manifest, edge=(msgspec.structs.replace(first, certificate=stream), *manifest.edge[1:])
    )
    with pytest.raises(ConfigError, match=f"'{first.id}' promises something of the stream.*--epsilon and --delta"):
        promise_of(narrower, 0.05, None, {})
    assert promise_of(narrower, 0.05, 0.1, {}).contract == "disagreement"
