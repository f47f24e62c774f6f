"""What the runs beside a neighbour that takes memory are told as."""

from __future__ import annotations

from hardware.memory import Run, Seen, figures


def adapting() -> Run:
    seen = [
        Seen(0.0, 0, 448, "large"),
        Seen(40.0, 320, 90, "small"),
        Seen(65.0, 520, 160, "medium"),
        Seen(75.0, 600, 91, "small"),
        Seen(85.0, 684, 92, "shedding"),
    ]
    return Run("adapting", 8, seen=seen, came={"large": 9, "medium": 2, "small": 5, "shedding": 4}, back_s=113.9)


def told(*runs: Run) -> dict[str, float | None]:
    return {figure.figure: figure.value for figure in figures(runs)}


def test_the_run_that_shows_everything() -> None:
    found = told(adapting())
    assert found == {
        "adapting, 8 MiB/s: agents killed": 0,
        "adapting, 8 MiB/s: a cheaper variant before none": 1,
        "adapting, 8 MiB/s: neighbour's memory at the cheapest variant": 320,
        "adapting, 8 MiB/s: neighbour's memory at the first refusal": 684,
        "adapting, 8 MiB/s: agent's memory before": 448,
        "adapting, 8 MiB/s: agent's memory at the first refusal": 92,
        "adapting, 8 MiB/s: answered": 16,
        "adapting, 8 MiB/s: refused with Retry-After": 4,
        "adapting, 8 MiB/s: lost": 0,
        "adapting, 8 MiB/s: back on the best variant": 113.9,
    }
    assert all(figure.holds is not False for figure in figures([adapting()]))


def test_an_agent_that_is_killed_or_refuses_at_once_misses_its_aim() -> None:
    killed = Run("adapting", 8, seen=adapting().seen[:1], came={"large": 9, "lost": 2}, killed_at_mib=300)
    missed = {figure.figure.partition(": ")[2] for figure in figures([killed]) if figure.holds is False}
    assert missed == {"agents killed", "a cheaper variant before none", "lost", "back on the best variant"}
    sheds = Run(
        "adapting", 8, seen=[Seen(0.0, 0, 448, "large"), Seen(1.0, 9, 90, "shedding"), Seen(2.0, 9, 90, "small")]
    )
    assert not sheds.degrades_first


def test_runs_alike_are_counted_together() -> None:
    lived = Run("adapting", 64, seen=adapting().seen, came={"small": 3, "lost": 1})
    killed = [
        Run("adapting", 64, later_s=at_s, came={"lost": 50}, killed_at_mib=mib) for at_s, mib in ((1, 340), (2, 322))
    ]
    found = told(adapting(), lived, *killed)
    assert found["adapting, 64 MiB/s: agents killed"] == 2
    assert found["adapting, 64 MiB/s: neighbour's memory at the first kill"] == 322
    assert found["adapting, 64 MiB/s: lost by agents that lived"] == 1
    assert {figure.unit for figure in figures([adapting(), lived, *killed]) if "64 MiB/s: agents" in figure.figure} == {
        "of 3"
    }


def test_none_that_adapts_may_be_killed() -> None:
    killed = Run("adapting", 16, later_s=1, came={"lost": 50}, killed_at_mib=340)
    other = Run("not adapting", 8, killed_at_mib=424)
    found = {one.figure: (one.aim, one.holds) for one in figures([adapting(), killed, other])}
    assert found["adapting, 16 MiB/s: agents killed"] == ("0", False)
    assert found["not adapting, 8 MiB/s: agents killed"] == (None, None)
