import json
from typing import Any

import msgspec
import pytest
from support.agent import DIGITS
from support.event_certificates import about_events

from bench.support.bundles import with_certificate
from firstline_core.bundle.manifest import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_NAME,
    Manifest,
    Model,
    Policy,
    Provenance,
    Score,
    certificate_problem,
    encode_manifest,
    parse_manifest,
)
from firstline_core.errors import IntegrityError
from firstline_core.processing.steps import Decode, Graph, InputSpec, ModelInput, PreStep, Resize, Scale, Softmax
from firstline_core.routing.certificate import EventPromise, GroupCertificate
from firstline_core.routing.policy import Logistic
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.types import TensorSpec

FILE = Artefact("models/edge.onnx", "a" * 64, 10)
GRAPH = Artefact("graph.onnx", "b" * 64, 20)


def fed(*steps: PreStep) -> tuple[ModelInput, ...]:
    return (ModelInput("image", preprocess=steps),)


EDGE = Model("edge", FILE, "onnx", "fp32", fed(Decode(), Resize(8, 8), Scale()), (Softmax(),))
FULL = Model("full", Artefact("full.onnx", "c" * 64, 30), "onnx", "fp32", fed(Decode(), Graph(GRAPH)))
MANIFEST = Manifest(
    "digits", 3, Classification(("a", "b")), (InputSpec("image", "BYTES", (-1,), "image"),), (EDGE,), FULL
)
LEARNED = {"weights": [1.0, -1.0], "bias": 0.5}
BARE = msgspec.to_builtins(Model("bare", FILE, "onnx", "fp32", fed(Decode(), Resize(8, 8))))


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(encode_manifest(MANIFEST)) | fields).encode()


def test_the_specifications_that_clients_see() -> None:
    assert MANIFEST.input_tensors == (TensorSpec("image", "BYTES", (-1,)),)
    assert MANIFEST.task.outputs == (TensorSpec("probabilities", "FP32", (-1, 2)),)
    assert MANIFEST.labels == ("a", "b")
    assert MANIFEST.full_digest == FULL.digest


def test_a_detectors_task_changes_what_its_answers_and_certificates_are_for() -> None:
    policy = Policy(Score("mean_confidence"))
    before = msgspec.structs.replace(MANIFEST, task=Detection(("a", "b")), policy=policy)
    after = msgspec.structs.replace(before, task=Detection(("a", "b"), iou=0.05))
    assert before.full_digest != after.full_digest
    assert before.score_digest(policy.score) != after.score_digest(policy.score)


def test_every_file_is_listed_once() -> None:
    assert MANIFEST.artefacts == (FILE, FULL.artefact, GRAPH)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 2}, "format 2; this version of Firstline reads format 1"),
        ({"format": 0}, "format 0; this version"),
        ({"format": "1"}, 'format "1"; this version'),
        ({"colour": "red"}, "the field 'colour' is unknown"),
        ({"task": {"kind": "classification", "labels": ["one"]}}, "at least two labels"),
        ({"task": {"kind": "classification", "labels": ["a", "b"], "size": 3}}, "size' is unknown"),
        (
            {"task": {"kind": "divination", "labels": ["a", "b"]}},
            "the task 'divination' belongs to a package that is not installed",
        ),
        ({"labels": ["a", "b"]}, "the field 'labels' is unknown"),
        ({"policy": {"score": {"kind": "loudness"}}}, "policy.score.kind of this task is one of max_probability, "),
        ({"edge": [], "full": None}, "needs an edge variant or a full model"),
        ({"version": 0}, "version"),
        ({"name": "../up"}, "name"),
        ({"policy": {"score": {"kind": "graph"}}}, "goes with kind 'graph'"),
        (
            {
                "task": {"kind": "detection", "labels": ["a"]},
                "policy": {"score": {"kind": "graph", "graph": msgspec.to_builtins(GRAPH)}},
            },
            "policy.score.kind of this task is one of minimum_confidence, .*, learned",
        ),
        ({"policy": {"score": {"kind": "learned"}}}, "goes with kind 'learned'"),
        ({"policy": {"score": {"learned": {"weights": [1], "bias": 0}}}}, "goes with kind 'learned'"),
        ({"policy": {"score": {"kind": "learned", "learned": LEARNED}}}, "score.learned has 2 weights, but its task"),
        ({"policy": {"value": LEARNED}}, "policy.value has 2 weights, but its task gives 6 features"),
        ({"policy": {"score": {"kind": "energy"}}, "edge": [BARE]}, "'energy' of 'bare' needs logits"),
        ({"policy": {"score": {"temperature": 1e-40}}}, r"temperature' has to be a number of at least 0\.01"),
        ({"policy": {"score": {"temperature": 101}}}, r"'policy.score.temperature' has to be a number of at most 100"),
        (
            {"inputs": [{"name": "", "datatype": "BYTES", "shape": [-1]}]},
            r"'inputs\[0\].name' has to be text of length at least 1",
        ),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": []}]}, "input shape needs -1"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]}, "input shape needs -1"),
        ({"inputs": [{"name": "edge/x", "datatype": "FP32", "shape": [-1, 4]}]}, "begins with edge/"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 0]}]}, "at least 1"),
        (
            {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, 1], "kind": "image"}]},
            r"kind image: .* its shape \[-1\]",
        ),
    ],
)
def test_an_invalid_field_is_named_in_the_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        parse_manifest(changed(**fields))


@pytest.mark.parametrize(
    "file", ["../up.onnx", "/etc/passwd", "a/../../b", ".hidden", "a/.hidden", "a//b", "a\\b", "", "a/", "a\n"]
)
def test_a_file_outside_the_bundle_is_refused(file: str) -> None:
    edge = json.loads(encode_manifest(MANIFEST))["edge"][0]
    edge["artefact"]["file"] = file
    with pytest.raises(IntegrityError, match="is not a manifest"):
        parse_manifest(changed(edge=[edge]))


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"format": 1', b"[" * 100_000, b'{"format": {}}'])
def test_an_invalid_manifest_is_refused(text: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse_manifest(text)


def test_a_huge_file_is_not_parsed() -> None:
    with pytest.raises(IntegrityError, match="at most"):
        parse_manifest(b" " * (MANIFEST_LIMIT_BYTES + 1))


@pytest.mark.parametrize(
    "other",
    [
        Model("edge", GRAPH, "onnx", "fp32", EDGE.inputs, EDGE.postprocess),
        Model("edge", FILE, "tflite", "fp32", EDGE.inputs, EDGE.postprocess),
        Model("edge", FILE, "onnx", "fp32", fed(Decode(), Resize(8, 8, "bicubic"), Scale()), EDGE.postprocess),
        Model("edge", FILE, "onnx", "fp32", EDGE.inputs, ()),
        Model("edge", FILE, "onnx", "fp32", EDGE.inputs, EDGE.postprocess, output="logits"),
        Model("edge", FILE, "onnx", "fp32", EDGE.inputs, EDGE.postprocess, batch=1),
    ],
)
def test_the_digest_changes_with_everything_that_changes_answers(other: Model) -> None:
    assert other.digest != EDGE.digest


def test_the_digest_does_not_change_with_names_and_figures() -> None:
    certified = with_certificate(EDGE, MANIFEST)
    assert certified.certificate is not None
    assert certified.digest == EDGE.digest
    renamed = Model("other", FILE, "onnx", "float", EDGE.inputs, EDGE.postprocess, measured={"accuracy": 1.0})
    assert renamed.digest == EDGE.digest


def test_provenance_round_trips_and_changes_no_digest() -> None:
    provenance = Provenance("static-int8", "full", "c" * 64, {"per_channel": "yes"}, {"onnxruntime": "1.23.2"})
    variant = msgspec.structs.replace(EDGE, provenance=provenance)
    manifest = msgspec.structs.replace(MANIFEST, edge=(variant,))
    assert parse_manifest(encode_manifest(manifest)) == manifest
    assert variant.digest == EDGE.digest


def test_a_learned_score_is_part_of_the_digest() -> None:
    learned = Logistic((0.1, -2.5, 1e-9, 3.0, 0.0, 1 / 3), -0.7)
    policy = Policy(Score("learned", learned=learned), 0.5, learned)
    found = parse_manifest(encode_manifest(msgspec.structs.replace(MANIFEST, policy=policy)))
    assert found.policy == policy
    other = msgspec.structs.replace(learned, bias=-0.8)
    assert Score("learned", learned=other).digest != policy.score.digest
    assert Policy(policy.score, value=other).score.digest == policy.score.digest


def test_a_certificate_of_the_full_model_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to an edge variant"):
        msgspec.structs.replace(MANIFEST, full=with_certificate(FULL, MANIFEST))


def test_a_certificate_of_a_detector_names_its_events() -> None:
    detector = msgspec.structs.replace(MANIFEST, task=Detection(("a", "b")), policy=Policy(Score("minimum_confidence")))
    certificate = with_certificate(EDGE, detector).certificate
    promise = EventPromise(certificate.epsilon, certificate.delta, 9, 0.5, certificate.risk_upper)
    of_event = msgspec.structs.replace(
        certificate,
        contract="events",
        audit_epsilon=None,
        events={"missed b": promise},
        labels_digest=detector.labels_digest,
    )
    of_frames, of_events = (
        msgspec.structs.replace(detector, edge=(msgspec.structs.replace(EDGE, certificate=one), *detector.edge[1:]))
        for one in (certificate, of_event)
    )
    assert parse_manifest(encode_manifest(of_events)) == of_events
    with pytest.raises(IntegrityError, match="the certificate of 'edge' names no event"):
        parse_manifest(encode_manifest(of_frames))


@pytest.mark.parametrize(
    "promise",
    [
        about_events({"missed b": 0.05}),
        {"threshold": 0.7, "by": "class", "groups": {"b": GroupCertificate(0.7, 100, 0.5, 0.04)}},
    ],
)
def test_a_certificate_that_names_labels_is_void_for_others(promise: dict[str, Any]) -> None:
    certified = msgspec.structs.replace(MANIFEST, edge=(with_certificate(EDGE, MANIFEST, **promise),))
    assert parse_manifest(encode_manifest(certified)) == certified
    assert certificate_problem(certified, certified.edge[0]) == ""
    for labels in (("b", "a"), ("c", "b")):
        other = msgspec.structs.replace(certified, task=Classification(labels))
        assert certificate_problem(other, other.edge[0]) == "its certificate is void: it was made for other labels"
    plain = msgspec.structs.replace(MANIFEST, edge=(with_certificate(EDGE, MANIFEST),))
    assert b"labels_digest" not in encode_manifest(plain)
    renamed = msgspec.structs.replace(plain, task=Classification(("b", "a")))
    assert certificate_problem(renamed, renamed.edge[0]) == ""


def test_independent_labels_void_a_certificate() -> None:
    certified = msgspec.structs.replace(MANIFEST, edge=(with_certificate(EDGE, MANIFEST),))
    other = msgspec.structs.replace(certified, task=Classification(MANIFEST.labels, independent=True))
    assert certificate_problem(other, other.edge[0]).endswith("made for another full model and another score")
    certified = msgspec.structs.replace(other, edge=(with_certificate(EDGE, other),))
    thresholds = Classification(MANIFEST.labels, independent=True, thresholds=(0.5, 0.4))
    moved = msgspec.structs.replace(certified, task=thresholds)
    assert certificate_problem(certified, certified.edge[0]) == ""
    assert certificate_problem(moved, moved.edge[0]).endswith("made for another full model and another score")
    assert parse_manifest(encode_manifest(moved)).task == thresholds


def test_only_bundles_that_need_them_have_batch_and_independent_labels() -> None:
    text = encode_manifest(MANIFEST)
    assert b'"batch"' not in text
    assert json.loads(text)["task"] == {"kind": "classification", "labels": ["a", "b"]}
    single = msgspec.structs.replace(EDGE, batch=1)
    task = Classification(("a", "b"), independent=True)
    needed = msgspec.structs.replace(MANIFEST, edge=(single,), task=task)
    assert parse_manifest(encode_manifest(needed)) == needed
    fields = json.loads(encode_manifest(needed))
    assert fields["edge"][0]["batch"] == 1
    assert fields["task"] == {"kind": "classification", "labels": ["a", "b"], "independent": True}
    assert "batch" not in fields["full"]


def test_a_manifest_without_new_fields_is_written_as_it_was_read() -> None:
    text = (DIGITS / MANIFEST_NAME).read_bytes()
    assert encode_manifest(parse_manifest(text)) == text
