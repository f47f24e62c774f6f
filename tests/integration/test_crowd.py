"""A few devices before a real gateway and broker, as `make heartbeats` has them by the thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
from crowd.measure import Effort, come, delays, site

from firstline_gateway.fleet import counting
from firstline_gateway.settings.settings import Store
from firstline_gateway.store.database import open_database

pytestmark = pytest.mark.mosquitto


async def test_all_that_a_crowd_says_is_taken(tmp_path: Path) -> None:
    async with site(tmp_path / "site", 50, Effort()) as found:
        await come(found)
        assert await found.there.beat(period_s=0.5, seconds=0.5) == 50
        assert await delays(found, seconds=0.1)  # what was said before is taken by then
        assert {each.name for each in await found.everybody()} == set(found.there.names)
        database = open_database(Store(url=f"sqlite:///{tmp_path / 'site' / 'gateway.db'}"))
        try:
            with database.snapshot() as connection:
                counted = counting.totals_of(connection, found.there.names)
        finally:
            database.close()
        assert set(counted) == set(found.there.names)
        assert not found.there.dropped
