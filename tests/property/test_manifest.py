"""Manifests survive their file form, with their digests."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from firstline_core.bundle.manifest import Manifest, Model, Policy, Score, encode_manifest, parse_manifest
from firstline_core.processing import steps
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
PATHS = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,9}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,9}){0,2}", fullmatch=True)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SIZES = st.integers(1, 16384)
SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
ARTEFACTS = st.builds(Artefact, PATHS, SHA256, st.integers(0, 2**40))
CHANNELS = st.lists(FLOATS, max_size=4).map(tuple)
PRE: Any = st.one_of(
    st.builds(steps.Decode, st.sampled_from(["RGB", "L"])),
    st.builds(steps.CenterCrop, st.floats(0, 1, exclude_min=True)),
    st.builds(steps.Resize, SIZES, SIZES, st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"])),
    st.builds(steps.Scale, CHANNELS, CHANNELS),
    st.builds(steps.Layout, st.sampled_from(["NHWC", "NCHW"])),
    st.builds(steps.Flatten),
    st.builds(steps.Graph, ARTEFACTS),
)
POST: Any = st.one_of(st.builds(steps.Softmax), st.builds(steps.LabelOffset, SIZES), st.builds(steps.Graph, ARTEFACTS))
SCORES = st.builds(Score, st.sampled_from(["max_probability", "margin", "entropy"]), st.floats(0.01, 100)) | st.builds(
    Score, st.just("graph"), st.just(1.0), ARTEFACTS
)
SHAPES = st.lists(st.integers(1, 99) | st.just(-1), max_size=3).map(lambda sizes: (-1, *sizes))
INPUT_NAMES = st.text(min_size=1, max_size=5).filter(lambda name: not name.startswith("edge/"))  # of audits
INPUTS = st.builds(steps.InputSpec, INPUT_NAMES, st.sampled_from(["FP32", "UINT8", "INT64"]), SHAPES) | st.builds(
    steps.InputSpec, INPUT_NAMES, st.just("BYTES"), st.just((-1,)), st.sampled_from(["image", "audio", "text"])
)
LABELS: Any = st.lists(st.text(max_size=5), min_size=2, max_size=4).map(tuple)
TASKS = st.builds(Classification, LABELS, st.booleans())
PRESTEPS = st.lists(PRE, max_size=4).map(tuple)


def models(names: list[str]) -> st.SearchStrategy[Model]:
    """Models that read all these inputs of the bundle."""
    ports = [st.builds(steps.ModelInput, st.just(name), st.just(f"port {name}"), PRESTEPS) for name in names]
    return st.builds(
        Model,
        NAMES,
        ARTEFACTS,
        st.sampled_from(["onnx", "tflite"]),
        st.text(max_size=5),
        st.tuples(*ports),
        st.lists(POST, max_size=3).map(tuple),
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=5), FLOATS, max_size=2),
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    inputs = draw(st.lists(INPUTS, min_size=1, max_size=3, unique_by=lambda spec: spec.name))
    model = models([spec.name for spec in inputs])
    edge = draw(st.lists(model, min_size=1, max_size=3, unique_by=lambda each: each.id))
    policy = draw(st.builds(Policy, SCORES, FLOATS))
    return Manifest(draw(NAMES), draw(st.integers(1, 2**53)), draw(TASKS), tuple(inputs), tuple(edge), policy=policy)


@given(manifests())
def test_survives_its_file_form(manifest: Manifest) -> None:
    found = parse_manifest(encode_manifest(manifest))
    assert found == manifest
    assert [model.digest for model in found.models] == [model.digest for model in manifest.models]
