from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bundles import with_certificate

from firstline_core.bundle.artefact import Artefact
from firstline_core.bundle.manifest import (
    MANIFEST_LIMIT_BYTES,
    InputSpec,
    Manifest,
    Model,
    encode_manifest,
    parse_manifest,
)
from firstline_core.bundle.steps import Decode, Graph, Resize, Scale, Softmax
from firstline_core.errors import IntegrityError
from firstline_core.types import TensorSpec

RECORDED = Path(__file__).with_name("manifest_format_1.json")
"""As Firstline wrote it when format 1 was its newest."""

FILE = Artefact("models/edge.onnx", "a" * 64, 10)
GRAPH = Artefact("graph.onnx", "b" * 64, 20)
EDGE = Model("edge", FILE, "onnx", "fp32", (Decode(), Resize(8, 8), Scale()), (Softmax(),))
FULL = Model("full", Artefact("full.onnx", "c" * 64, 30), "onnx", "fp32", (Decode(), Graph(GRAPH)))
MANIFEST = Manifest("digits", 3, ("a", "b"), InputSpec("image", "BYTES", (-1,)), (EDGE,), FULL)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(encode_manifest(MANIFEST)) | fields).encode()


def test_says_what_clients_see() -> None:
    assert MANIFEST.input_spec == TensorSpec("image", "BYTES", (-1,))
    assert MANIFEST.output_spec == TensorSpec("probabilities", "FP32", (-1, 2))
    assert MANIFEST.full_digest == FULL.digest


def test_names_every_file_once() -> None:
    assert MANIFEST.artefacts == (FILE, FULL.artefact, GRAPH)


def test_survives_its_file_form() -> None:
    assert parse_manifest(encode_manifest(MANIFEST)) == MANIFEST


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 3}, "format 3; this version of Firstline reads formats 1 to 2"),
        ({"format": 0}, "format 0; this version"),
        ({"format": "2"}, 'format "2"; this version'),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"labels": ["one"]}, "at least two labels"),
        ({"edge": [], "full": None}, "needs an edge variant or a full model"),
        ({"version": 0}, "version"),
        ({"name": "../up"}, "name"),
        ({"policy": {"score": {"kind": "graph"}}}, "goes with kind 'graph'"),
        ({"policy": {"score": {"temperature": 0}}}, "temperature"),
        ({"policy": {"score": {"temperature": 1e-40}}}, r">= 0\.01 - at `\$\.policy\.score\.temperature"),
        ({"policy": {"score": {"temperature": 101}}}, r"<= 100\.0 - at `\$\.policy\.score\.temperature"),
        ({"input": {"name": "", "datatype": "BYTES", "shape": [-1]}}, r"length >= 1 - at `\$\.input\.name"),
        ({"input": {"name": "x", "datatype": "FP32", "shape": []}}, "input shape needs -1"),
        ({"input": {"name": "x", "datatype": "FP32", "shape": [1, 4]}}, "input shape needs -1"),
        ({"input": {"name": "x", "datatype": "FP32", "shape": [-1, 0]}}, "at least 1"),
        ({"input": {"name": "x", "datatype": "BYTES", "shape": [-1, 1]}}, r"BYTES input has shape \[-1\]"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        parse_manifest(changed(**fields))


@pytest.mark.parametrize(
    "file", ["../up.onnx", "/etc/passwd", "a/../../b", ".hidden", "a/.hidden", "a//b", "a\\b", "", "a/", "a\n"]
)
def test_a_file_cannot_lie_outside_of_the_bundle(file: str) -> None:
    edge = json.loads(encode_manifest(MANIFEST))["edge"][0]
    edge["artefact"]["file"] = file
    with pytest.raises(IntegrityError, match="is not a manifest"):
        parse_manifest(changed(edge=[edge]))


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"format": 1', b"[" * 100_000, b'{"format": {}}'])
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse_manifest(text)


def test_a_huge_file_is_not_parsed() -> None:
    with pytest.raises(IntegrityError, match="at most"):
        parse_manifest(b" " * (MANIFEST_LIMIT_BYTES + 1))


@pytest.mark.parametrize(
    "other",
    [
        Model("edge", GRAPH, "onnx", "fp32", EDGE.preprocess, EDGE.postprocess),
        Model("edge", FILE, "tflite", "fp32", EDGE.preprocess, EDGE.postprocess),
        Model("edge", FILE, "onnx", "fp32", (Decode(), Resize(8, 8, "bicubic"), Scale()), EDGE.postprocess),
        Model("edge", FILE, "onnx", "fp32", EDGE.preprocess, ()),
        Model("edge", FILE, "onnx", "fp32", EDGE.preprocess, EDGE.postprocess, output="logits"),
    ],
)
def test_the_digest_changes_with_all_that_changes_answers(other: Model) -> None:
    assert other.digest != EDGE.digest


def test_the_digest_does_not_change_with_names_and_figures() -> None:
    certified = with_certificate(EDGE, MANIFEST)
    assert certified.certificate is not None
    assert certified.digest == EDGE.digest
    renamed = Model("other", FILE, "onnx", "float", EDGE.preprocess, EDGE.postprocess, measured={"accuracy": 1.0})
    assert renamed.digest == EDGE.digest


def test_format_1_is_read_as_format_2_without_certificates() -> None:
    found = parse_manifest(RECORDED.read_bytes())
    assert found.format == 2
    assert [model.certificate for model in found.models] == [None] * 4
    assert [model.digest[:12] for model in found.models] == [
        "61ac8a510673",
        "55a4d4845d16",
        "b1f94b87be25",
        "8cdbe9e7ea2b",
    ]  # what devices and gateways know
    assert json.loads(encode_manifest(found))["format"] == 2
    assert parse_manifest(encode_manifest(found)) == found
    nameless = {key: value for key, value in json.loads(RECORDED.read_bytes()).items() if key != "format"}
    assert parse_manifest(json.dumps(nameless).encode()) == found


def test_format_1_knows_no_certificates() -> None:
    certified = msgspec.structs.replace(MANIFEST, edge=(with_certificate(EDGE, MANIFEST),))
    text = json.dumps(json.loads(encode_manifest(certified)) | {"format": 1}).encode()
    with pytest.raises(IntegrityError, match="format 1 knows no certificates"):
        parse_manifest(text)


def test_the_full_model_carries_no_certificate() -> None:
    with pytest.raises(ValueError, match="belongs to an edge variant"):
        msgspec.structs.replace(MANIFEST, full=with_certificate(FULL, MANIFEST))
