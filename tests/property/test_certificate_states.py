"""What holds for every certificate in the field, whatever its audits and its gateway say, in any order."""

import asyncio
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edge import Scene, answer_of, request

from firstline_core.clock import SimulatedClock
from firstline_core.routing import audit
from firstline_core.routing.tightening import tightened
from firstline_core.types import ContractNotice, Privacy, Reason, Route, Wait
from firstline_edge.audits import records
from firstline_edge.audits.records import CertificateRecord, CertificateState, EventRecord, record_key
from firstline_edge.audits.samples import Sample
from firstline_edge.settings.settings import AuditSection

CERTIFIED = 0.8
SCORES = st.integers(800, 1000).map(lambda thousandth: thousandth / 1000)
AUDITS = st.tuples(st.just("audit"), SCORES, st.integers(0, 1), st.sampled_from((0.02, 0.1, 1.0)))
NOTICES = st.tuples(st.just("notice"), st.booleans(), st.none() | st.integers(0, 50), st.integers(1, 10**6))
RESTARTS = st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0))
# Runs of audits at one agreement, so that some of them raise an alarm.
EVENTS = st.lists(
    st.one_of(st.lists(AUDITS, max_size=5), st.builds(lambda one, times: [one] * times, AUDITS, st.integers(1, 40)),
              st.lists(NOTICES, max_size=1), st.lists(RESTARTS, max_size=1)),
    max_size=8,
).map(lambda runs: [event for run in runs for event in run])  # fmt: skip
ON_ALARM: st.SearchStrategy[Literal["tighten", "escalate"]] = st.sampled_from(("tighten", "escalate"))


@contextmanager
def scene_in(folder: Path, on_alarm: Literal["tighten", "escalate"]) -> Iterator[Scene]:
    made = Scene(
        clock=SimulatedClock(),
        certified=CERTIFIED,
        folder=folder,
        audit=AuditSection(per_hour=0.0, on_alarm=on_alarm, escalations_per_hour=8.0),
    )
    try:
        yield made
    finally:
        made.samples.close()
        made.workers.close()


@given(EVENTS, ON_ALARM, st.lists(SCORES, min_size=1, max_size=4, unique=True))
@settings(max_examples=60, deadline=None)
def test_thresholds_only_tighten(
    events: list[tuple[str, float, int, float]], on_alarm: Literal["tighten", "escalate"], asked: list[float]
) -> None:
    asyncio.run(_only_tightens(events, on_alarm, asked))


async def _only_tightens(
    events: list[tuple[str, float, int, float]], on_alarm: Literal["tighten", "escalate"], asked: list[float]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alarmed, threshold, level = False, CERTIFIED, 1.0
        remaining = list(events)
        while True:
            with scene_in(folder, on_alarm) as scene:
                monitored = scene.monitored
                await scene.infer(*asked)  # all of them are in the cache from here on
                while remaining and remaining[0][0] != "restart":
                    kind, first, second, propensity = remaining.pop(0)
                    if kind == "audit":
                        sample = Sample(monitored.key, "m", "3", 0.0, first, second, propensity, kept=True)
                        drawn_at = monitored.threshold if first >= monitored.threshold else CERTIFIED
                        scene.certificates.audited(monitored, sample, threshold=drawn_at)
                    else:
                        scene.certificates.apply_notice(
                            scene.held, ContractNotice(bool(first), second, int(propensity))
                        )
                    certificate_state = scene.certificates.of(scene.held)
                    assert certificate_state.is_void >= alarmed
                    assert monitored.threshold >= threshold
                    assert scene.router.threshold(scene.held) == max(CERTIFIED, monitored.threshold)
                    assert scene.certificates.level(monitored) <= level
                    alarmed, threshold, level = (
                        certificate_state.is_void,
                        monitored.threshold,
                        scene.certificates.level(monitored),
                    )
                assert scene.certificates.of(scene.held).is_void == alarmed
                assert monitored.threshold == threshold
                assert scene.certificates.level(monitored) <= level
                for value in asked:
                    answer = answer_of(await scene.infer(value))
                    kept = answer.model_digest == scene.echo.digest
                    assert answer.certified == (not alarmed if kept else True)
                    if kept and (answer.confidence or 0.0) < threshold:
                        assert answer.reason is Reason.BUDGET
                await scene.certificates.close()
            if not remaining:
                return
            remaining.pop(0)


@given(
    st.lists(st.tuples(SCORES, st.integers(0, 1), st.sampled_from((0.02, 0.1, 1.0))), max_size=60),
    st.sampled_from((0.02, 0.05, 0.2)),
    SCORES,
)
def test_tightening_keeps_promise(found: list[tuple[float, int, float]], epsilon: float, threshold: float) -> None:
    scores, losses, propensities = ([row[column] for row in found] for column in range(3))
    stricter = tightened(scores, losses, propensities, epsilon, threshold)
    assert stricter > threshold
    assert stricter == math.inf or stricter in scores


@given(
    st.sampled_from(("edge_digest", "full_digest", "score_digest")),
    st.text("0123456789abcdef", min_size=64, max_size=64),
)
def test_a_changed_digest_always_voids(field: str, digest: str) -> None:
    with tempfile.TemporaryDirectory() as name, scene_in(Path(name), "tighten") as scene:
        assert scene.held.edge.certificate is not None
        certificate = scene.held.edge.certificate
        other = msgspec.structs.replace(certificate, **{field: digest})
        same = getattr(certificate, field) == digest
        assert (record_key("m", "3", certificate) == record_key("m", "3", other)) == same


@given(st.lists(st.integers(0, 1), max_size=50), st.booleans(), SCORES)
def test_record_is_stored_and_read_back(losses: list[int], alarmed: bool, threshold: float) -> None:
    test = audit.begin(0.05)
    for loss in losses:
        test = audit.update(test, loss)
    state = CertificateState("broken_in_fleet" if alarmed else "valid", tightened=threshold)
    record = CertificateRecord(model="m", version="3", events={"": EventRecord(test)}, state=state, drawn=5, agreed=5)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "certificates.json"
        records.RecordFile(path).write(records.encode({"k": record}))
        assert records.read(path) == {"k": record}


WISHES = st.fixed_dictionaries(
    {}, optional={"route": st.sampled_from((Route.AUTO, Route.EDGE)), "wait": st.sampled_from(Wait)}
)


@given(st.lists(st.tuples(SCORES, WISHES), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_a_local_only_input_is_never_audited(asked: list[tuple[float, dict[str, Route | Wait]]]) -> None:
    async def ask() -> None:
        with tempfile.TemporaryDirectory() as name:
            everything = AuditSection(per_hour=1e9, bytes_per_hour=1e12, max_share=1.0, spacing_s=0.0)
            scene = Scene(clock=SimulatedClock(), certified=CERTIFIED, folder=Path(name), audit=everything)
            scene.clock._now_s += 600
            for value, wishes in asked:
                await scene.answer(request(value, privacy=Privacy.LOCAL_ONLY, **wishes))
            assert scene.monitored.record.drawn == 0
            assert scene.cloud.requests == []
            scene.samples.close()
            await scene.close()

    asyncio.run(ask())
