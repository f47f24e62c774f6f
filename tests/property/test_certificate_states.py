"""What holds for every certificate in the field, whatever its audits and its gateway say, in any order."""

import asyncio
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from support.edge import Scene, answer_of

from firstline_core.clock import SimulatedClock
from firstline_core.routing.tightening import tightened
from firstline_core.types import ContractNotice, Reason
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
    scene = Scene(
        clock=SimulatedClock(),
        certified=CERTIFIED,
        folder=folder,
        audit=AuditSection(per_hour=0.0, on_alarm=on_alarm, escalations_per_hour=8.0),
    )
    try:
        yield scene
    finally:
        scene.samples.close()
        scene.workers.close()


@given(EVENTS, ON_ALARM, st.lists(SCORES, min_size=1, max_size=4, unique=True))
@settings(max_examples=60, deadline=None)
def test_thresholds_only_tighten(
    events: list[tuple[str, float, int, float]], on_alarm: Literal["tighten", "escalate"], values: list[float]
) -> None:
    asyncio.run(_only_tightens(events, on_alarm, values))


async def _only_tightens(
    events: list[tuple[str, float, int, float]], on_alarm: Literal["tighten", "escalate"], values: list[float]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alarmed, threshold, level = False, CERTIFIED, 1.0
        remaining = list(events)
        while True:
            with scene_in(folder, on_alarm) as scene:
                monitored = scene.monitored
                await scene.infer(*values)  # all of them are in the cache from here on
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
                for value in values:
                    answer = answer_of(await scene.infer(value))
                    by_edge = answer.model_digest == scene.echo.digest
                    assert answer.certified == (not alarmed if by_edge else True)
                    if by_edge and (answer.confidence or 0.0) < threshold:
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
def test_tightened_threshold_keeps_the_promise(
    found: list[tuple[float, int, float]], epsilon: float, threshold: float
) -> None:
    scores, losses, propensities = ([row[column] for row in found] for column in range(3))
    stricter = tightened(scores, losses, propensities, epsilon, threshold)
    assert stricter > threshold
    assert stricter == math.inf or stricter in scores
