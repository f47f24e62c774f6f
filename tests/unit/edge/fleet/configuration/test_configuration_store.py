"""The configuration's state: valid in the process, and on the disk as soon as it accepts writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.updates import full_disk

from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.structs import write_struct
from firstline_edge.fleet.configuration.configuration_store import (
    ConfigurationState,
    ConfigurationStore,
    SignedConfiguration,
    read_state,
)
from firstline_edge.fleet.updates.state_machine import Record

OFFERED = ConfigurationState(record=Record(DesiredConfiguration("quiet", 1, "a" * 64), UpdateState.OFFERED))
RUNNING = replace(OFFERED, running=SignedConfiguration("quiet", 1, 'name = "quiet"'))


class CountedStore:
    """A store over a file, with the numbers of its writes and of the changes that it reported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = self.writes = 0
        write_struct(path, OFFERED)
        self.store = ConfigurationStore(path, OFFERED, changed=self._change, off_loop=self._write)

    @property
    def on_disk(self) -> ConfigurationState:
        return read_state(self.path)

    def _change(self) -> None:
        self.changes += 1

    async def _write(self, call: Any, *arguments: Any) -> Any:
        self.writes += 1
        return call(*arguments)


@pytest.fixture
def counted(tmp_path: Path) -> CountedStore:
    return CountedStore(tmp_path / "fleet" / "configuration")


async def test_a_state_is_stored_and_reported(counted: CountedStore) -> None:
    await counted.store.write(RUNNING)
    assert counted.on_disk == counted.store.state == RUNNING
    assert counted.store.is_on_disk and counted.changes == 1


async def test_an_ended_update_has_nothing_staged() -> None:
    assert OFFERED.record is not None and RUNNING.running is not None
    downloading = replace(OFFERED.record, state=UpdateState.DOWNLOADING)
    staged = replace(OFFERED, staged=RUNNING.running)
    assert staged.with_record(downloading).staged == RUNNING.running
    assert staged.with_record(replace(downloading, state=UpdateState.REJECTED)).staged is None
    assert staged.with_record(OFFERED.record).staged is None, "a new update begins without"


async def test_a_refused_write_leaves_the_previous_state_valid(
    counted: CountedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        await counted.store.write(RUNNING)
    assert counted.store.state == OFFERED and counted.changes == 0
    assert not counted.store.is_on_disk, "the write may have reached the disk"
    await counted.store.retry_write()
    assert counted.on_disk == OFFERED and counted.store.is_on_disk


async def test_a_rollback_is_valid_at_once_and_stored_later(
    counted: CountedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.store.set_in_memory(RUNNING)
    assert counted.store.state == RUNNING and counted.changes == 1 and counted.writes == 0
    assert not counted.store.is_on_disk and counted.on_disk == OFFERED
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        await counted.store.retry_write()
    await counted.store.retry_write()
    assert counted.store.is_on_disk and counted.on_disk == RUNNING


async def test_a_settled_state_is_not_written_again(counted: CountedStore) -> None:
    counted.store.set_in_memory(RUNNING)
    await counted.store.retry_write()
    await counted.store.retry_write()
    assert counted.writes == 1 and counted.on_disk == RUNNING
