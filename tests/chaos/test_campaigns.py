"""Each campaign in small; `make -C bench chaos` has the numbers."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import figures
from bench.figures import Figure
from chaos import run
from chaos.kills import campaign
from chaos.offline import hour_offline
from chaos.soak import slope_of, soak


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_and_nothing_is_corrected_twice() -> None:
    seen = asyncio.run(campaign(6, seed=1))
    assert sum(seen.kills.values()) == 6
    assert len(seen.acknowledged) > 20
    assert (seen.lost, seen.repeated, seen.unlike, seen.unrecorded, seen.alarms) == (0, 0, 0, 0, 0), seen.ends
    assert seen.recorded >= seen.ends["final"] > 0


def test_minutes_offline_are_made_up_for() -> None:
    seen = hour_offline(400, seed=1)
    assert (seen.asked, seen.promised, seen.corrected) == (400, 400, 400)
    assert seen.offline_s == 20


def test_a_soak_measures_both_tiers() -> None:
    agent, gateway = asyncio.run(soak(3, seed=1))
    assert (agent.tier, gateway.tier) == ("agent", "gateway")
    assert agent.failures == 0 and agent.requests == 60
    assert agent.end_s < 10 and gateway.end_s < 10  # the figure is 2, where nothing else runs
    assert agent.rss_bytes > 1 << 20 and agent.written_bytes >= 0


def test_a_slope_has_a_bound_above_it() -> None:
    slope, bound = slope_of([0.0, 1.0, 2.0, 3.0], [5.0, 7.0, 9.0, 11.0])
    assert slope == pytest.approx(2) and bound == pytest.approx(2)
    slope, bound = slope_of([0.0, 1.0, 2.0, 3.0], [5.0, 8.0, 8.0, 11.0])
    assert slope == pytest.approx(1.8) and bound > slope


@pytest.mark.parametrize("part", run.SCRIPTS)
def test_benches_of_parts_exist(part: str) -> None:
    module, *_ = run.SCRIPTS[part](True, 1).split()
    assert find_spec(f"bench.{module}") is not None


def test_violation_replaces_earlier_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def violated(*_: object) -> list[Figure]:
        raise AssertionError("one was lost")

    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setitem(run.PARTS, "storage", violated)
    monkeypatch.setattr(run.page, "refill", lambda _: None)
    figures.write("chaos", [Figure("storage: lost", 0, "", "0", True), Figure("kills: lost", 0, "", "0", True)])
    assert run.main(["--only", "storage"]) == 1
    assert [(figure.figure, figure.holds) for figure in figures.measured("chaos")] == [
        ("kills: lost", True),
        ("storage: ended by a violation", False),
    ]
