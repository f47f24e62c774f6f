from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bundles import with_certificate

from firstline_core.bundle.manifest import (
    MANIFEST_LIMIT_BYTES,
    Manifest,
    Model,
    Policy,
    Score,
    encode_manifest,
    parse_manifest,
    valid_certificate,
)
from firstline_core.bundle.provenance import Provenance
from firstline_core.errors import IntegrityError
from firstline_core.processing.steps import Decode, Graph, InputSpec, Resize, Scale, Softmax
from firstline_core.routing.learned import Logistic
from firstline_core.storage.artefact import Artefact
from firstline_core.types import TensorSpec

FORMAT_3 = Path(__file__).parents[2] / "data" / "previous" / "manifest.json"
FORMAT_1, FORMAT_2 = (Path(__file__).with_name(f"manifest_format_{number}.json") for number in (1, 2))
"""As Firstline wrote them when these were its newest; both are the same bundle, at 2 certified twice."""

FILE = Artefact("models/edge.onnx", "a" * 64, 10)
GRAPH = Artefact("graph.onnx", "b" * 64, 20)
EDGE = Model("edge", FILE, "onnx", "fp32", (Decode(), Resize(8, 8), Scale()), (Softmax(),))
FULL = Model("full", Artefact("full.onnx", "c" * 64, 30), "onnx", "fp32", (Decode(), Graph(GRAPH)))
MANIFEST = Manifest("digits", 3, ("a", "b"), InputSpec("image", "BYTES", (-1,)), (EDGE,), FULL)
LEARNED = {"weights": [1.0, -1.0], "bias": 0.5}
BARE = msgspec.to_builtins(Model("bare", FILE, "onnx", "fp32", (Decode(), Resize(8, 8))))


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
        ({"format": 6}, "format 6; this version of Firstline reads formats 1 to 5"),
        ({"format": 0}, "format 0; this version"),
        ({"format": "3"}, 'format "3"; this version'),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"labels": ["one"]}, "at least two labels"),
        ({"edge": [], "full": None}, "needs an edge variant or a full model"),
        ({"version": 0}, "version"),
        ({"name": "../up"}, "name"),
        ({"policy": {"score": {"kind": "graph"}}}, "goes with kind 'graph'"),
        ({"policy": {"score": {"kind": "learned"}}}, "goes with kind 'learned'"),
        ({"policy": {"score": {"learned": {"weights": [1], "bias": 0}}}}, "goes with kind 'learned'"),
        ({"policy": {"score": {"kind": "learned", "learned": LEARNED}}}, "score.learned has 2 weights, but 2 labels"),
        ({"policy": {"value": LEARNED}}, "policy.value has 2 weights, but 2 labels give 6"),
        ({"policy": {"score": {"kind": "energy"}}, "edge": [BARE]}, "'bare' declares no softmax"),
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


DIGESTS = ["61ac8a510673", "55a4d4845d16", "b1f94b87be25", "8cdbe9e7ea2b"]  # what devices and gateways know


def test_format_1_is_read_as_the_newest_without_certificates() -> None:
    found = parse_manifest(FORMAT_1.read_bytes())
    assert [model.certificate for model in found.models] == [None] * 4
    assert [model.digest[:12] for model in found.models] == DIGESTS
    nameless = {key: value for key, value in json.loads(FORMAT_1.read_bytes()).items() if key != "format"}
    assert parse_manifest(json.dumps(nameless).encode()) == found


def test_certificates_of_format_2_stay_valid_and_say_what_audits_test_where_it_is_known() -> None:
    found = parse_manifest(FORMAT_2.read_bytes())
    assert [model.digest[:12] for model in found.models] == DIGESTS
    first, _, third = found.edge
    certificates = [valid_certificate(found, model) for model in (first, third)]
    assert [one and (one.contract, one.epsilon, one.audit_epsilon, one.histogram) for one in certificates] == [
        ("disagreement", 0.02, 0.02, None),
        ("harm", 0.03, None, None),
    ]


@pytest.mark.parametrize("recorded", [FORMAT_1, FORMAT_2, FORMAT_3])
def test_what_was_read_from_an_older_format_is_written_in_the_newest(recorded: Path) -> None:
    found = parse_manifest(recorded.read_bytes())
    assert (found.format, json.loads(encode_manifest(found))["format"]) == (5, 3)
    assert parse_manifest(encode_manifest(found)) == found


def test_an_older_format_does_not_say_what_it_did_not_know() -> None:
    certified = msgspec.structs.replace(MANIFEST, edge=(with_certificate(EDGE, MANIFEST),))
    learned = Logistic((0.0,) * 6, 0.0)
    known: list[tuple[int, Manifest, str]] = [
        (1, certified, "format 1 knows no certificates"),
        (2, certified, "the certificate of 'edge' says what format 2 does not know"),
        (2, msgspec.structs.replace(MANIFEST, policy=Policy(Score("energy"))), "no score of kind 'energy'"),
        (1, msgspec.structs.replace(MANIFEST, policy=Policy(value=learned)), "no policy.value"),
    ]
    for older, manifest, message in known:
        text = json.dumps(json.loads(encode_manifest(manifest)) | {"format": older}).encode()
        with pytest.raises(IntegrityError, match=message):
            parse_manifest(text)


def test_how_a_model_was_made_survives_the_file_form_is_format_5_and_changes_no_digest() -> None:
    made = Provenance("static-int8", "full", "c" * 64, {"per_channel": "yes"}, {"onnxruntime": "1.23.2"})
    told = msgspec.structs.replace(EDGE, provenance=made)
    manifest = msgspec.structs.replace(MANIFEST, edge=(told,))
    said = json.loads(encode_manifest(manifest))
    assert said["format"] == 5 and parse_manifest(encode_manifest(manifest)) == manifest
    assert told.digest == EDGE.digest
    for older in (1, 2, 3, 4):
        with pytest.raises(IntegrityError, match=f"format {older} knows no provenance"):
            parse_manifest(json.dumps(said | {"format": older}).encode())


def test_a_bundle_that_does_not_say_how_it_was_made_is_read_by_older_devices_too() -> None:
    said = json.loads(encode_manifest(MANIFEST))
    assert said["format"] == 3
    assert all("provenance" not in model for model in [*said["edge"], *([said["full"]] if said["full"] else [])])


def test_a_learned_score_and_value_survive_the_file_form_and_tell_in_the_scores_digest() -> None:
    learned = Logistic((0.1, -2.5, 1e-9, 3.0, 0.0, 1 / 3), -0.7)
    policy = Policy(Score("learned", learned=learned), 0.5, learned)
    found = parse_manifest(encode_manifest(msgspec.structs.replace(MANIFEST, policy=policy)))
    assert found.policy == policy
    other = msgspec.structs.replace(learned, bias=-0.8)
    assert Score("learned", learned=other).digest != policy.score.digest
    assert Policy(policy.score, value=other).score.digest == policy.score.digest


def test_the_full_model_carries_no_certificate() -> None:
    with pytest.raises(ValueError, match="belongs to an edge variant"):
        msgspec.structs.replace(MANIFEST, full=with_certificate(FULL, MANIFEST))
