"""What is kept of configurations: in the process and on the disk, one change after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.updates import full_disk

from firstline_core.clock import SimulatedClock
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.configuration.kept import Held, Kept, Record, read_kept, write_kept
from firstline_edge.fleet.configuration.ledger import Ledger

NOW_S = 1.8e9
OFFERED = Kept(record=Record(DesiredConfiguration("quiet", 1, "a" * 64), UpdateState.OFFERED))
HELD = Held("quiet", 1, 'name = "quiet"')


class Kepts:
    """A ledger over a file, and how often it told that something else holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told = self.writes = 0
        write_kept(path, OFFERED)
        clock = SimulatedClock(wall_start_s=NOW_S)
        self.ledger = Ledger(path, OFFERED, clock=clock, changed=self._tell, off_loop=self._written)

    @property
    def on_disk(self) -> Kept:
        return read_kept(self.path)

    def _tell(self) -> None:
        self.told += 1

    async def _written(self, call: Any, *arguments: Any) -> Any:
        self.writes += 1
        await asyncio.sleep(0)  # another task may come between
        return call(*arguments)


@pytest.fixture
def kept(tmp_path: Path) -> Kepts:
    return Kepts(tmp_path / "fleet" / "configuration")


def running(kept: Kept) -> Kept:
    return replace(kept, running=HELD)


async def test_a_state_is_noted_with_its_time_and_its_reason(kept: Kepts) -> None:
    await kept.ledger.note(UpdateState.REJECTED, "config", "It is not for here.")
    record = kept.ledger.kept.record
    assert record is not None
    assert (record.state, record.reason, record.message) == (UpdateState.REJECTED, "config", "It is not for here.")
    assert record.since_s == NOW_S
    assert kept.on_disk == kept.ledger.kept and kept.ledger.settled and kept.told == 1


async def test_what_cannot_follow_changes_nothing(kept: Kepts) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        await kept.ledger.note(UpdateState.COMMITTED)
    assert kept.ledger.kept == kept.on_disk == OFFERED and kept.told == 0


async def test_changes_that_come_together_are_all_there(kept: Kepts) -> None:
    def next_version(before: Kept) -> Kept:
        return replace(
            before, running=HELD if before.running is None else replace(HELD, version=before.running.version + 1)
        )

    await asyncio.gather(*(kept.ledger.write(next_version) for _ in range(3)))
    assert kept.on_disk == kept.ledger.kept
    assert kept.on_disk.running == replace(HELD, version=3) and kept.told == 3


async def test_a_change_that_must_be_on_the_disk_first_does_not_hold_where_that_is_full(
    kept: Kepts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        await kept.ledger.write(running)
    assert kept.ledger.kept == OFFERED and kept.told == 0
    assert not kept.ledger.settled, "it may have come to the disk all the same"
    await kept.ledger.settle()
    assert kept.on_disk == OFFERED and kept.ledger.settled


async def test_going_back_holds_at_once_and_is_on_the_disk_later(kept: Kepts, monkeypatch: pytest.MonkeyPatch) -> None:
    with full_disk(monkeypatch):
        await kept.ledger.write(running, at_once=True)
    assert kept.ledger.kept.running == HELD and kept.told == 1
    assert not kept.ledger.settled and kept.on_disk == OFFERED
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        await kept.ledger.settle()
    await kept.ledger.settle()
    assert kept.ledger.settled and kept.on_disk == kept.ledger.kept


async def test_what_is_settled_is_not_written_again(kept: Kepts) -> None:
    kept.ledger.hold(running)
    assert kept.ledger.kept.running == HELD and kept.told == 1 and kept.writes == 0
    await kept.ledger.settle()
    await kept.ledger.settle()
    assert kept.writes == 1 and kept.on_disk == kept.ledger.kept
