import re
import shutil
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.cli import json_of, run
from support.images import encode
from support.sample_models import bright_cells

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import float_graph, write_graph
from firstline.workbench.compress import evaluation, onnx_techniques
from firstline.workbench.compress.candidates import free_name
from firstline.workbench.compress.compression import ordered_variants, source_of
from firstline.workbench.compress.evaluation import split_data
from firstline.workbench.compress.judge import Figures
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.inspect import verify
from firstline.workbench.precision import precision_of
from firstline_core.bundle.golden import read_golden
from firstline_core.bundle.manifest import Policy, Score, encode_manifest, valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import BoxRows, Decode, InputSpec, Layout, Resize, Scale, Suppress
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.detection import Detection

_DIGITS = Path(__file__).parents[5] / "models/digits"
_HELDOUT = _DIGITS / "heldout"
_run, _json = partial(run, "compress"), partial(json_of, "compress")


@pytest.fixture
def _few_turns() -> Iterator[None]:
    """Times are measured with little care, for tests in which none of them decides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "TURNS", 10)
        yield


def _residual(path: Path, channels: int = 16) -> Path:
    """Images [n, 3, 8, 8] to two logits, by one residual block of convolutions."""
    random = np.random.default_rng(0)
    shapes = {"stem": (channels, 3), "first": (channels, channels), "second": (channels, channels)}
    weights: dict[str, Any] = {}
    for name, shape in shapes.items():
        weights[f"{name}.w"] = random.normal(0, 0.2, (*shape, 3, 3)).astype(np.float32)
        weights[f"{name}.b"] = random.normal(0, 0.1, shape[0]).astype(np.float32)
    weights |= {"fc.w": random.normal(0, 1, (2, channels)).astype(np.float32), "fc.b": np.zeros(2, np.float32)}

    def convolution(input_name: str, name: str) -> Any:
        return helper.make_node("Conv", [input_name, f"{name}.w", f"{name}.b"], [name], pads=[1, 1, 1, 1])

    nodes = [
        convolution("x", "stem"),
        helper.make_node("Relu", ["stem"], ["r0"]),
        convolution("r0", "first"),
        helper.make_node("Relu", ["first"], ["r1"]),
        convolution("r1", "second"),
        helper.make_node("Add", ["second", "r0"], ["sum"]),
        helper.make_node("GlobalAveragePool", ["sum"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["logits"], transB=1),
    ]
    return float_graph(path, nodes, {"x": ["n", 3, 8, 8]}, {"logits": ["n", 2]}, **weights)


def _said(path: Path, rows: Any) -> Any:
    runtime = OnnxRuntime(path, providers=(CPU,), threads=1)
    found = runtime.run({runtime.inputs[0].name: rows})[runtime.outputs[0].name]
    runtime.close()
    return found


def _digest() -> str:
    dataset = open_dataset(_HELDOUT)
    return dataset.digest(_IMAGE, dataset.truth(open_bundle(_DIGITS / "bundle").manifest.task))


_IMAGE = (InputSpec("image", "BYTES", (-1,), "image"),)


def _images(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (count, 3, 8, 8)).astype(np.float32)


def test_the_parts_of_the_data_are_disjoint() -> None:
    dataset = open_dataset(_HELDOUT)
    parts = split_data(dataset, _IMAGE, 3)
    files = [{sample.file for sample in part.samples} for part in (parts.make, parts.judge, parts.certify)]
    assert [len(part) for part in files] == [300, 120, 179]
    assert len(set.union(*files)) == len(dataset)
    assert split_data(dataset, _IMAGE, 3) == parts
    assert split_data(dataset, _IMAGE, 4) != parts
    with pytest.raises(ConfigError, match="give 100 or more"):
        split_data(open_dataset(_HELDOUT, 60), _IMAGE)


def test_groups_stay_together_in_the_parts(tmp_path: Path) -> None:
    def grouped(count: int) -> Dataset:
        lines = "".join(f"{at}.png,0,{at % count}\n" for at in range(400))
        (tmp_path / "labels.csv").write_text(f"file,label,group\n{lines}")
        return open_dataset(tmp_path)

    (tmp_path / "images").mkdir()
    for at in range(400):
        (tmp_path / f"images/{at}.png").write_bytes(f"image {at}".encode())
    parts = split_data(grouped(20), _IMAGE, 3)
    groups = [set(part.clusters) for part in (parts.make, parts.judge, parts.certify)]
    assert [len(part) for part in groups] == [10, 4, 6]
    assert len(set.union(*groups)) == 20
    with pytest.raises(
        ConfigError, match="give more groups: samples of one group stay together, and these have 1 group"
    ):
        split_data(grouped(1), _IMAGE)


@pytest.mark.usefixtures("_few_turns")
def test_labels_in_another_order_judge_no_candidate(tmp_path: Path) -> None:
    shutil.copytree(_HELDOUT, tmp_path / "data")
    _, *lines = (_HELDOUT / "labels.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    shifted = "".join(f"{name},{(int(label) + 1) % 10}\n" for name, label, *_ in cells)
    (tmp_path / "data/labels.csv").write_text(f"file,label\n{shifted}")
    promise = ("--epsilon", 0.3, "--delta", 0.1, "--limit", 150)
    output = _run(_DIGITS / "bundle", "--data", tmp_path / "data", *promise, code=2).output
    assert "answers meet the data's labels no better than by chance" in output


def test_an_image_named_twice_is_refused(tmp_path: Path) -> None:
    names = [*(f"{number}.png" for number in range(120)), "./7.png"]
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{name},0\n" for name in names))
    (tmp_path / "images").mkdir()
    with pytest.raises(ConfigError, match=r"labels\.csv:122 names '\./7\.png', as line 9 does; an image may be in one"):
        split_data(open_dataset(tmp_path), _IMAGE)


def test_a_copy_of_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{at}.png,0\n" for at in range(120)))
    for at in range(120):
        (tmp_path / f"images/{at}.png").write_bytes(f"image {at if at != 70 else 7}".encode())
    with pytest.raises(
        ConfigError, match=r"labels\.csv:72 names '70\.png', which is byte for byte '7\.png' of line 9; an"
    ):
        split_data(open_dataset(tmp_path), _IMAGE)
    with pytest.raises(ConfigError, match=r"holds '70\.png', which is byte for byte '7\.png'; an image"):
        split_data(open_dataset(tmp_path / "images"), _IMAGE)
    (tmp_path / "images/70.png").write_bytes(b"another")
    assert len(split_data(open_dataset(tmp_path), _IMAGE).make) == 60


def test_every_format_gives_nearly_the_same_answers(tmp_path: Path) -> None:
    source, ready = _residual(tmp_path / "m.onnx"), tmp_path / "ready.onnx"
    nodes = onnx_techniques.prepared(source, ready)
    assert len(nodes) == len(set(nodes)) == 4
    rows = _images(40)
    expected = _said(source, rows)
    files = {name: tmp_path / f"{name}.onnx" for name in (*onnx_techniques.PLAIN, "static-int8")}
    for name, make in onnx_techniques.PLAIN.items():
        make(ready, rows, files[name])
    onnx_techniques.static_int8(ready, rows, files["static-int8"])
    for name, file in files.items():
        assert np.abs(_said(file, rows) - expected).mean() < 0.05 * np.abs(expected).mean(), name
        assert file.stat().st_size < source.stat().st_size
    assert precision_of(files["int8-weights"], "onnx") == "int8"

    some = tmp_path / "some.onnx"
    onnx_techniques.static_int8(ready, rows[:20], some, exclude=nodes[:2])
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(some).graph.initializer}
    assert kinds["stem.w"] == kinds["first.w"] == TensorProto.FLOAT
    assert TensorProto.INT8 in kinds.values()


def test_static_int8_weights_have_seven_bits(tmp_path: Path) -> None:
    """More would overflow on some processors, where the model's answers would not be those that were certified."""
    source, ready, quantised = _residual(tmp_path / "m.onnx"), tmp_path / "ready.onnx", tmp_path / "int8.onnx"
    onnx_techniques.prepared(source, ready)
    onnx_techniques.static_int8(ready, _images(20), quantised)
    tensors = [each for each in onnx.load(quantised).graph.initializer if each.data_type == TensorProto.INT8]
    assert tensors and max(np.abs(numpy_helper.to_array(each).astype(int)).max() for each in tensors) <= 64


@pytest.mark.parametrize("listed", [False, True])
def test_models_of_old_exporters_are_quantised(tmp_path: Path, listed: bool) -> None:
    source, ready, quantised = _residual(tmp_path / "m.onnx"), tmp_path / "ready.onnx", tmp_path / "made.onnx"
    model = onnx.load(source)
    model.opset_import[0].version = 11
    if listed:  # weights are among the inputs, as they had to be
        model.ir_version = 3
        model.graph.input.extend(
            helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)) for one in model.graph.initializer
        )
    onnx.save(model, source)
    nodes, rows = onnx_techniques.prepared(source, ready), _images(20)
    expected = _said(ready, rows)
    for make in (*onnx_techniques.PLAIN.values(), onnx_techniques.static_int8):
        make(ready, rows, quantised)
        assert np.abs(_said(quantised, rows) - expected).mean() < 0.05 * np.abs(expected).mean()
        assert quantised.stat().st_size < ready.stat().st_size
    assert len(nodes) == 4


def test_the_most_sensitive_operator_stays_in_fp32(tmp_path: Path) -> None:
    logits = _said(_residual(tmp_path / "m.onnx"), _images(80))
    model = onnx.load(tmp_path / "m.onnx")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    spread = numpy_helper.to_array(constants["fc.w"]).copy()
    spread[:, 3] += 400  # both classes alike; seven bits then have no step left for what tells them apart
    even = np.array([0, np.median(logits[:, 0] - logits[:, 1])], np.float32)
    constants["fc.w"].CopyFrom(numpy_helper.from_array(spread, "fc.w"))
    constants["fc.b"].CopyFrom(numpy_helper.from_array(even, "fc.b"))
    onnx.save(model, tmp_path / "m.onnx")
    ready = tmp_path / "ready.onnx"
    nodes = onnx_techniques.prepared(tmp_path / "m.onnx", ready)
    rows = _images(80)
    reports: list[tuple[int, int]] = []
    left_out = onnx_techniques.sensitive_nodes(
        ready, nodes, rows[:30], rows[30:], tmp_path, progress=lambda *done: reports.append(done)
    )
    assert left_out == (next(node for node in nodes if node.startswith("Gemm")),)
    assert reports[-1] == (4, 4)


def test_variants_are_ordered_by_kept_share() -> None:
    there = open_bundle(_DIGITS / "bundle").manifest.edge
    new = msgspec.structs.replace(there[0], id="new")
    shares = dict(zip((*(model.id for model in there), "new"), (0.8, 0.7, 0.6, 0.75), strict=True))
    figures = {name: Figures(name, 0.9, 1.0, 1, share) for name, share in shares.items()}
    assert [model.id for model in ordered_variants(there, [new], figures)] == [
        there[0].id,
        "new",
        there[1].id,
        there[2].id,
    ]
    figures["new"] = Figures("new", 0.9, 0.5, 1, 0.8)  # as much, and faster
    assert ordered_variants(there, [new], figures)[0].id == "new"
    figures["new"] = Figures("new", 0.9, 0.5, 1, 0.0)
    assert ordered_variants(there, [new], figures)[-1].id == "new"


def test_a_variant_unmeasured_on_the_target_comes_last() -> None:
    there = open_bundle(_DIGITS / "bundle").manifest.edge[:1]
    new = msgspec.structs.replace(there[0], id="new")
    figures = {there[0].id: Figures(there[0].id, 0.9, None, 1, 0.8), "new": Figures("new", 0.9, 9.0, 1, 0.8)}
    assert ordered_variants(there, [new], figures)[0].id == "new"
    figures[there[0].id] = Figures(there[0].id, 0.9, 1.0, 1, 0.8, waited_share=0.3)  # disturbed
    assert ordered_variants(there, [new], figures)[0].id == "new"


def test_an_uncertified_variant_comes_after_certified_ones() -> None:
    there = open_bundle(_DIGITS / "bundle").manifest.edge
    assert all(model.certificate is not None for model in there)
    new = msgspec.structs.replace(there[0], id="new", certificate=None)
    figures = {model.id: Figures(model.id, 0.9, 1.0, 1, 0.0) for model in there}  # this data proves nothing of them
    figures["new"] = Figures("new", 0.9, 0.5, 1, 0.0)
    assert ordered_variants(there, [new], figures)[-1].id == "new"


def test_accepted_candidates_become_the_next_version(tmp_path: Path) -> None:
    out = tmp_path / "next"
    found = _json(_DIGITS / "bundle", "--data", _HELDOUT, "--epsilon", 0.1, "--delta", 0.1, "--out", out)
    by_technique = {one["technique"]: one for one in found["candidates"]}
    assert set(by_technique) == {"static-int8", "dynamic-int8", "fp16", "int8-weights"}
    assert not by_technique["static-int8"]["accepted"]  # smaller by a fifth, and slower
    assert found["rows"] == {"make": 300, "judge": 120, "certify": 179}
    assert set(found["rows_checked"]) == {figures["id"] for figures in found["there"]}
    # Only the dynamically quantised candidate takes its ranges from the batch.
    assert {name for name, one in by_technique.items() if one["batch"] == 1} == {"dynamic-int8"}
    taken = "edge-onnx-int8-weights"
    assert taken in found["taken"]
    compressed = open_bundle(out)
    old = open_bundle(_DIGITS / "bundle").manifest
    assert (compressed.manifest.version, found["version"]) == (old.version + 1, old.version + 1)
    new = next(model for model in compressed.manifest.edge if model.id == taken)
    certificate = valid_certificate(compressed.manifest, new)
    assert (certificate.epsilon, certificate.delta, certificate.n) == (0.1, 0.1, 179)
    assert new.measured == {"accuracy": round(found["certified_accuracy"][taken], 4)}
    assert certificate.kept == by_technique["int8-weights"]["figures"]["kept"]
    assert new.provenance.technique == "int8-weights"
    assert new.provenance.source_digest == old.edge[0].digest
    assert new.provenance.parameters == {
        "seed": "0",
        "data_sha256": _digest(),
        "make_rows": "300",
        "judge_rows": "120",
        "certify_rows": "179",
    }
    assert set(new.provenance.libraries) == {"firstline", "onnx", "onnxruntime"}
    answers = read_golden(compressed, compressed.manifest.golden.artefact)
    assert set(answers.outputs) == {model.id for model in compressed.manifest.edge}
    assert answers.inputs == read_golden(open_bundle(_DIGITS / "bundle"), old.golden.artefact).inputs
    assert compressed.manifest.golden.tolerance == old.golden.tolerance
    assert not [check for check in verify(out) if check.outcome == "failed"]
    for more in ((), ("--force",)):  # which takes the refused, and no more
        assert (
            "exists; name another" in _run(_DIGITS / "bundle", "--data", _HELDOUT, "--out", out, *more, code=2).output
        )


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """A bundle of a detector of bright cells, and 100 images with 0 to 2 of them, whose boxes are labelled."""
    pytest.importorskip("pycocotools")
    data, random = tmp_path / "data", np.random.default_rng(0)
    for folder in (tmp_path / "bundle", data / "images", data / "labels"):
        folder.mkdir(parents=True)
    (data / "labels.txt").write_text("bright\n")
    for number in range(100):
        brightness = random.integers(0, 90, 16)
        found = random.choice(16, random.choice(3, p=(0.1, 0.5, 0.4)), replace=False)
        brightness[found] = random.integers(150, 256, len(found))
        pixels = np.kron(brightness.reshape(4, 4), np.ones((4, 4))).astype(np.uint8)
        (data / f"images/frame_{number}.png").write_bytes(encode(np.repeat(pixels[..., None], 3, axis=2)))
        boxes = "".join(f"0 {(at % 4 + 0.5) / 4} {(at // 4 + 0.5) / 4} 0.25 0.25\n" for at in found)
        (data / f"labels/frame_{number}.txt").write_text(boxes)
    steps = {
        "preprocess": (Decode("L"), Resize(8, 8), Scale(), Layout("NCHW")),
        "postprocess": (BoxRows(), Suppress(0.4)),
    }
    variant = model(bright_cells(tmp_path / "bundle/edge.onnx"), tmp_path / "bundle", id="edge", **steps)
    full = msgspec.structs.replace(variant, id="full")
    task, policy = Detection(("bright",), k=16), Policy(Score("minimum_confidence"), 0.4)
    write_manifest(tmp_path / "bundle", [variant], (), task=task, full=full, policy=policy)
    return tmp_path


@pytest.mark.usefixtures("_few_turns")
def test_candidates_of_a_detector_are_certified_for_events(cells: Path) -> None:
    arguments = (cells / "bundle", "--data", cells / "data", "--force")
    promises = ("--promise", "missed bright 25% at 80%", "--promise", "invented bright 25% at 70%")
    found = _json(*arguments, *promises, "--out", cells / "next")
    bounds = {"missed bright": {"epsilon": 0.25, "delta": 0.2}, "invented bright": {"epsilon": 0.25, "delta": 0.3}}
    assert found["promise"] == {"epsilon": 0.25, "delta": 0.3, "contract": "events", "events": bounds}
    assert found["sequences"]["effective"] == 1
    manifest = open_bundle(cells / "next").manifest
    certificates = {model.id: valid_certificate(manifest, model) for model in manifest.edge}
    assert len(found["taken"]) == 4
    for name in found["taken"]:
        certificate = certificates[name]
        stated = {event: (one.epsilon, one.delta) for event, one in certificate.events.items()}
        assert stated == {"missed bright": (0.25, 0.2), "invented bright": (0.25, 0.3)}
        assert certificate.delta == 0.3

    # The next compression takes the promise from the certificate.
    text = _run(cells / "next", "--data", cells / "data").stdout
    assert (
        "at most 25 % of the edge answers miss 'bright' where the full model reports it, with confidence 80 %" in text
    )
    assert "at most 25 % of the edge answers that report 'bright' invent it, with confidence 70 %" in text
    assert "they count as about 1 observation, not" in text
    assert re.search(r"^ model +map50 +on new rows", text, re.MULTILINE)


def test_compressing_a_detector_needs_a_promise_about_an_event(cells: Path) -> None:
    arguments = (cells / "bundle", "--data", cells / "data")
    for terms in ((), ("--epsilon", 0.1, "--delta", 0.1)):
        assert "A contract of the task detection names an event" in _run(*arguments, *terms, code=2).output
    both = ("--promise", "missed bright 25% at 80%", "--epsilon", 0.1)
    assert "leave out --epsilon and --delta" in _run(*arguments, *both, code=2).output
    assert "no event 'missed dark'" in _run(*arguments, "--promise", "missed dark 25% at 80%", code=2).output


@pytest.mark.usefixtures("_few_turns")
def test_uncertified_candidates_are_refused_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "next"
    text = _run(_DIGITS / "bundle", "--data", _HELDOUT, "--out", out, "--limit", 300).stdout
    assert "certified on 90: at most 1.5 % of edge answers disagree with the full model, with confidence 90 %" in text
    assert "edge-onnx-static-int8 is refused: it is not certified on this data" in text
    assert ".." not in text
    assert "No bundle was written: no candidate was taken." in text
    assert not out.exists()
    forced = _run(_DIGITS / "bundle", "--data", _HELDOUT, "--out", out, "--force", "--limit", 150)
    assert "--force takes 4 that the rule refuses." in forced.output
    assert len(open_bundle(out).manifest.edge) == 7


def test_a_model_without_an_axis_of_rows_is_refused() -> None:
    manifest = open_bundle(_DIGITS / "bundle").manifest
    bare = msgspec.structs.replace(manifest.edge[0], precision="fp32", batch=1, without_rows=("x",))
    with pytest.raises(ConfigError, match="has no axis of rows"):
        source_of(msgspec.structs.replace(manifest, edge=(bare,)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--of", "edge-tflite-int8"), "is int8; models in fp32 are compressed"),
        (("--of", "edge-tflite-float", "--student", "edge-onnx", "--train", "1"), "learns the logits of an ONNX model"),
        (("--epsilon", "1.5"), "epsilon"),
        (("--train", "1"), "needs --student; add --student MODEL"),
        (("--limit", "50"), "give 100 or more"),
    ],
)
def test_invalid_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in _run(_DIGITS / "bundle", "--data", _HELDOUT, *arguments, code=2).output


@pytest.mark.parametrize("out", ["afile/next", "afile/more/next", "/proc/none/next"])
def test_an_unwritable_folder_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.setattr("firstline.cli.compress.compress", lambda *_, **__: pytest.fail("it worked for nothing"))
    (tmp_path / "afile").touch()
    output = _run(_DIGITS / "bundle", "--data", _HELDOUT, "--out", tmp_path / out, code=2).output
    assert f"The bundle {tmp_path / out} cannot be written:" in output
    assert [left.name for left in tmp_path.iterdir()] == ["afile"]


def test_a_bundle_of_one_tier_is_refused(tmp_path: Path) -> None:
    shutil.copytree(_DIGITS / "bundle", tmp_path / "one")
    manifest = msgspec.json.decode((tmp_path / "one/manifest.json").read_bytes())
    manifest["full"] = None
    (tmp_path / "one/manifest.json").write_bytes(msgspec.json.encode(manifest))
    assert "needs edge and full model" in _run(tmp_path / "one", "--data", _HELDOUT, code=2).output


def test_a_bundle_without_one_of_its_files_is_refused(tmp_path: Path) -> None:
    shutil.copytree(_DIGITS / "bundle", tmp_path / "some")
    (tmp_path / "some/full.onnx").unlink()
    assert "has no full.onnx, which its manifest names" in _run(tmp_path / "some", "--data", _HELDOUT, code=2).output


def _with_edge(folder: Path, nodes: list[Any], weights: list[Any]) -> Path:
    """The digits' bundle with one uncertified edge model of these nodes, from "image" to "logits"."""
    shutil.copytree(_DIGITS / "bundle", folder)
    manifest = open_bundle(folder).manifest
    edge = manifest.edge[0]
    graph = onnx.load(folder / edge.artefact.file).graph
    content = write_graph(folder / "other.onnx", nodes, list(graph.input), list(graph.output), weights).read_bytes()
    artefact = Artefact("other.onnx", sha256(content).hexdigest(), len(content))
    other = msgspec.structs.replace(edge, artefact=artefact, certificate=None)
    (folder / "manifest.json").write_bytes(
        encode_manifest(msgspec.structs.replace(manifest, edge=(other,), golden=None))
    )
    return folder


@pytest.mark.usefixtures("_few_turns")
def test_a_model_without_weights_has_no_candidates(tmp_path: Path) -> None:
    bounds = [
        numpy_helper.from_array(np.array([each], np.int64), name) for name, each in (("a", 0), ("b", 10), ("c", 1))
    ]
    nodes = [
        helper.make_node("Flatten", ["image"], ["pixels"]),
        helper.make_node("Slice", ["pixels", "a", "b", "c"], ["logits"]),
    ]
    bundle = _with_edge(tmp_path / "plain", nodes, bounds)
    text = _run(bundle, "--data", _HELDOUT, "--limit", 100).stdout
    for technique in ("static-int8", "dynamic-int8", "fp16", "int8-weights"):
        assert f"{technique} is not made: 'edge-onnx' has no operator that it takes.\n" in text
    for one in _json(bundle, "--data", _HELDOUT, "--limit", 100)["candidates"]:
        assert one["reasons"] == ["'edge-onnx' has no operator that it takes"], one["technique"]


@pytest.mark.usefixtures("_few_turns")
def test_constant_nodes_are_quantised(tmp_path: Path) -> None:
    graph = onnx.load(_DIGITS / "bundle/edge-onnx.onnx").graph
    constants = [helper.make_node("Constant", [], [one.name], value=one) for one in graph.initializer]
    bundle = _with_edge(tmp_path / "nodes", [*constants, *graph.node], [])
    assert precision_of(bundle / "other.onnx", "onnx") == "fp32"
    assert all(one["figures"] for one in _json(bundle, "--data", _HELDOUT, "--limit", 100)["candidates"])


def test_a_candidate_gets_an_unused_name() -> None:
    bundle = open_bundle(_DIGITS / "bundle")
    source = bundle.manifest.edge[0]
    file = msgspec.structs.replace(source.artefact, file="edge-onnx-fp16.onnx")
    other = msgspec.structs.replace(source, id="another", artefact=file)
    more = Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, edge=(*bundle.manifest.edge, other)))
    assert free_name(bundle, source, "fp16") == "edge-onnx-fp16"
    assert free_name(more, source, "fp16") == "edge-onnx-fp16-2"
    assert len(free_name(bundle, msgspec.structs.replace(source, id="e" * 64), "student-static-int8")) <= 64
