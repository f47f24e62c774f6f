"""What a variant's certificate says, and what voids it."""

import math

import msgspec
import pytest

from bench.support.bundles import with_certificate
from firstline_core.bundle.manifest import (
    Manifest,
    Model,
    Policy,
    Score,
    certificate_problem,
    encode_manifest,
    parse_manifest,
    valid_certificate,
)
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.routing.certificate import Contract, EventPromise, GroupCertificate, Histogram
from firstline_core.routing.policy import TierDecision, covered, threshold_in_use
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification
from firstline_core.types import Reason, Tier

PLAIN = Model("edge", Artefact("edge.onnx", "a" * 64, 1), "onnx", "fp32", (ModelInput("x"),))
FULL = Model("full", Artefact("full.onnx", "b" * 64, 1), "onnx", "fp32", (ModelInput("x"),))
BARE = Manifest(
    "m", 1, Classification(("a", "b")), (InputSpec("x", "FP32", (-1, 1)),), (PLAIN,), FULL, Policy(threshold=0.99)
)
EDGE = with_certificate(PLAIN, BARE)
MANIFEST = msgspec.structs.replace(BARE, edge=(EDGE,))


def test_a_variant_without_a_certificate_has_a_reason() -> None:
    assert valid_certificate(BARE, PLAIN) is None
    assert certificate_problem(BARE, PLAIN) == "its bundle carries no certificate for it"


def test_an_invalid_certificate_names_the_reason() -> None:
    other = msgspec.structs.replace(MANIFEST, policy=Policy(Score("margin")), full=None)
    assert valid_certificate(other, EDGE) is None
    assert certificate_problem(other, EDGE).endswith("made for another full model and another score")
    processed = msgspec.structs.replace(EDGE, output="logits")
    assert certificate_problem(MANIFEST, processed).endswith("made for another edge model or its processing")


@pytest.mark.parametrize(
    ("contract", "graded", "sentence"),
    [
        ("disagreement", False, "at most 5 % of edge answers disagree with the full model"),
        ("disagreement", True, "the mean loss of edge answers against the full model's is at most 5 %"),
        ("harm", False, "at most 5 % of edge answers are wrong where the full model is right"),
        ("harm", True, "the mean loss that edge answers add to the full model's is at most 5 %"),
        ("stream", False, "the tiered accuracy is at most 5 percentage points below the full model's"),
        (
            "stream",
            True,
            "the mean loss of both tiers against the labels is at most 5 percentage points above the full model's",
        ),
    ],
)
def test_the_promise_is_a_sentence(contract: Contract, graded: bool, sentence: str) -> None:
    certificate = msgspec.structs.replace(EDGE.certificate, contract=contract, graded=graded)
    assert certificate.promise == f"{sentence}, with confidence 90 %"
    manifest = msgspec.structs.replace(MANIFEST, edge=(msgspec.structs.replace(EDGE, certificate=certificate),))
    assert parse_manifest(encode_manifest(manifest)) == manifest
    assert (b"graded" in encode_manifest(manifest)) is graded


def test_a_promise_by_class_has_a_threshold_for_each() -> None:
    groups = {"a": GroupCertificate(0.7, 100, 0.5, 0.04), "b": GroupCertificate(None, 9, 0.0, None)}
    by_class = msgspec.structs.replace(
        EDGE.certificate, threshold=0.7, by="class", groups=groups, labels_digest="0" * 64
    )
    assert [by_class.threshold_for(label) for label in ("a", "b", "c")] == [0.7, math.inf, math.inf]
    assert EDGE.certificate.threshold_for("b") == EDGE.certificate.threshold
    assert "in each predicted class, with confidence" in by_class.promise
    with pytest.raises(ValueError, match="if and only if it says by what"):
        msgspec.structs.replace(by_class, by="")
    with pytest.raises(ValueError, match="on all answers"):
        msgspec.structs.replace(by_class, contract="stream")
    with pytest.raises(ValueError, match="or neither"):
        GroupCertificate(0.7, 100, 0.5, None)


def test_a_promise_about_events_names_each_with_its_bound() -> None:
    promises = {
        "missed person": EventPromise(0.05, 0.1, 300, 0.8, 0.04),
        "invented cat": EventPromise(0.1, 0.05, 90, 0.9, 0.1),
    }
    events = msgspec.structs.replace(
        EDGE.certificate,
        contract="events",
        epsilon=0.1,
        risk_upper=0.1,
        audit_epsilon=None,
        events=promises,
        labels_digest="0" * 64,
    )
    assert events.promise == (
        "at most 5 % of the edge answers miss 'person' where the full model reports it, with confidence 90 %; "
        "at most 10 % of the edge answers that report 'cat' invent it, with confidence 95 %"
    )
    assert events.audit_bounds == {"missed person": 0.05, "invented cat": 0.1}
    assert EDGE.certificate.audit_bounds == {"": EDGE.certificate.audit_epsilon}
    for change, message in (
        ({"events": {}}, "if and only if its contract"),
        ({"contract": "harm"}, "if and only if its contract"),
        ({"audit_epsilon": 0.1}, "each event has its own"),
        ({"epsilon": 0.2}, "the largest of theirs"),
        ({"labels_digest": ""}, "a labels_digest if and only if"),
    ):
        with pytest.raises(ValueError, match=message):
            msgspec.structs.replace(events, **change)
    with pytest.raises(ValueError, match="does not certify"):
        EventPromise(0.05, 0.1, 300, 0.8, 0.06)


@pytest.mark.parametrize(
    ("edges", "shares", "message"), [((0.5,), (1.0,), "1 edges make 2 bins"), ((0.5, 0.5), (0.2, 0.2, 0.6), "ascend")]
)
def test_an_impossible_histogram_is_refused(edges: tuple[float, ...], shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Histogram(edges, shares)


def test_it_cannot_promise_less_risk_than_was_shown() -> None:
    with pytest.raises(ValueError, match=r"0\.06 does not certify"):
        with_certificate(PLAIN, BARE, risk_upper=0.06)


def test_the_certified_threshold_is_only_raised() -> None:
    certificate = EDGE.certificate
    assert threshold_in_use(0.99, certificate) == 0.9
    assert threshold_in_use(0.99, None) == 0.99
    assert threshold_in_use(0.99, certificate, 0.5) == 0.9
    assert threshold_in_use(0.99, certificate, 0.95) == 0.95


@pytest.mark.parametrize("reason", Reason)
def test_only_answers_accepted_by_score_are_covered(reason: Reason) -> None:
    decision = TierDecision(Tier.EDGE, reason)
    certificate = EDGE.certificate
    assert covered(decision, certificate.threshold, certificate) == (reason is Reason.CONFIDENT)
    assert not covered(decision, certificate.threshold, None)
    assert covered(decision, certificate.threshold + 0.01, certificate) == (reason is Reason.CONFIDENT)
    assert not covered(decision, certificate.threshold - 0.01, certificate)
