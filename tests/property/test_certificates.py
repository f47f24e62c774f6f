"""A certificate is void once anything it was made for changes; and routing under one contradicts itself nowhere."""

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edge import Scene, answer_of

from bench.support.bundles import with_certificate
from firstline_core.bundle.manifest import (
    Manifest,
    Model,
    Policy,
    Score,
    encode_manifest,
    parse_manifest,
    valid_certificate,
)
from firstline_core.processing.steps import Decode, Graph, InputSpec, ModelInput, Resize, Scale, Softmax
from firstline_core.routing.policy import Logistic
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification
from firstline_core.types import Privacy, Reason, Route, Tier

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
ARTEFACTS = st.builds(Artefact, st.just("file.onnx"), DIGESTS, st.just(1))
STEPS: Any = st.lists(
    st.builds(Decode) | st.builds(Resize, st.integers(1, 9), st.integers(1, 9)) | st.builds(Scale), max_size=3
).map(tuple)
AFTER: Any = st.lists(st.builds(Softmax) | st.builds(Graph, ARTEFACTS), max_size=2).map(tuple)


FED: Any = st.builds(ModelInput, st.just("x"), st.sampled_from(["", "in"]), STEPS).map(lambda fed: (fed,)) | st.tuples(
    st.builds(ModelInput, st.just("x"), st.just("in"), STEPS), st.builds(ModelInput, st.just("x"), st.just("b"), STEPS)
)


def models(name: str) -> st.SearchStrategy[Model]:
    return st.builds(
        Model,
        st.just(name),
        ARTEFACTS,
        st.sampled_from(["onnx", "tflite"]),
        st.just("fp32"),
        FED,
        AFTER,
        st.sampled_from(["", "out"]),
    )


WEIGHTS: Any = st.lists(st.floats(-9, 9), min_size=6, max_size=6).map(tuple)
SCORES = (
    st.builds(Score, st.sampled_from(["max_probability", "margin", "entropy"]), st.floats(0.01, 100))
    | st.builds(Score, st.just("graph"), st.floats(0.01, 100), ARTEFACTS)
    | st.builds(Score, st.just("learned"), st.just(1.0), st.none(), st.builds(Logistic, WEIGHTS, st.floats(-9, 9)))
)
MANIFESTS = st.builds(
    Manifest,
    st.just("m"),
    st.integers(1, 9),
    st.just(Classification(("a", "b"))),
    st.just((InputSpec("x", "BYTES", (-1,), "image"),)),
    models("edge").map(lambda model: (model,)),
    models("full"),
    st.builds(Policy, SCORES, st.floats(0, 1)),
)


def certified(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, edge=(with_certificate(manifest.edge[0], manifest),))


@given(MANIFESTS)
def test_certificate_survives_unrelated_changes(manifest: Manifest) -> None:
    found = parse_manifest(encode_manifest(certified(manifest)))
    assert found == certified(manifest)
    assert valid_certificate(found, found.edge[0]) == found.edge[0].certificate
    policy = msgspec.structs.replace(found.policy, threshold=0.5)
    changes: Any = {"version": found.version + 1, "task": Classification(("c", "d")), "policy": policy}
    moved = msgspec.structs.replace(found, **changes)
    assert valid_certificate(moved, moved.edge[0]) is not None


@given(MANIFESTS, MANIFESTS)
def test_a_changed_digest_always_voids(manifest: Manifest, other: Manifest) -> None:
    certificate = certified(manifest).edge[0].certificate
    for edge in (manifest.edge[0], other.edge[0]):
        for full in (manifest.full, other.full, None):
            for score in (manifest.policy.score, other.policy.score):
                mixed = msgspec.structs.replace(
                    manifest,
                    edge=(msgspec.structs.replace(edge, certificate=certificate),),
                    full=full,
                    policy=Policy(score),
                )
                same = (
                    edge.digest == manifest.edge[0].digest
                    and mixed.full_digest == manifest.full_digest
                    and score.digest == manifest.policy.score.digest
                )
                assert (valid_certificate(mixed, mixed.edge[0]) is not None) == same


@given(SCORES, SCORES)
def test_equal_digests_mean_equal_scores(one: Score, other: Score) -> None:
    assert (one.digest == other.digest) == (one == other)


CONFIDENCES = st.lists(st.integers(50, 100).map(lambda percent: percent / 100), min_size=1, max_size=6)
THRESHOLDS = st.integers(50, 100).map(lambda percent: percent / 100)


@settings(max_examples=60, deadline=None)
@given(
    CONFIDENCES,
    st.none() | THRESHOLDS,
    THRESHOLDS,
    st.sampled_from(Route),
    st.sampled_from([Privacy.ANY, Privacy.LOCAL_ONLY]),
)
def test_rows_are_accepted_or_escalated_by_the_threshold(
    values: list[float], certificate: float | None, least: float, route: Route, privacy: Privacy
) -> None:
    if privacy is Privacy.LOCAL_ONLY and route is Route.CLOUD:
        route = Route.AUTO

    async def ask() -> None:
        before = Scene(certified=certificate)
        after = Scene(certified=certificate, cache=before.cache, min_threshold=least)
        try:
            await before.infer(*values)
            for scene in (before, after, after):
                scene.cloud.requests.clear()
                answer = answer_of(await scene.infer(*values, route=route, privacy=privacy))
                rows = answer.rows or (answer,)
                threshold = scene.router.threshold(scene.held)
                sent = [value for request in scene.sent_rows for value in request]
                for value, row in zip(values, rows, strict=True):
                    at_edge = row.model_digest == scene.echo.digest
                    assert at_edge != (row.model_digest == scene.cloud.digest)
                    assert not (at_edge and route is Route.AUTO and round(value, 3) in sent)
                    if row.reason is Reason.CONFIDENT:
                        assert at_edge
                        assert row.confidence is not None and row.confidence >= threshold
                        assert row.certified == (certificate is not None and threshold >= certificate)
                    elif at_edge:
                        assert not row.certified
                        assert row.reason in (Reason.REQUESTED, Reason.LOCAL_ONLY)
                    else:
                        assert row.certified
                    if row.tier is Tier.CLOUD:
                        assert privacy is Privacy.ANY
                if privacy is Privacy.LOCAL_ONLY:
                    assert not sent
        finally:
            await before.close()
            await after.close()

    asyncio.run(ask())
