"""The store's own table: the service clock, by which records age."""

from __future__ import annotations

import sqlalchemy as sa

from firstline_core.clock import Clock
from firstline_gateway.store.database import Database
from firstline_gateway.store.schema import single_row

SERVICE_CLOCK = single_row("service_clock", sa.Column("seconds", sa.Double, nullable=False))


class ServiceClock:
    """The service clock in one gateway process; threads may share it.

    Args:
        database: stores it.
        clock: its monotonic time.

    Raises:
        StoreUnavailableError: the store refuses.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._clock = clock
        with database.reading() as connection:
            self._started_s = clock.monotonic_s() - read(connection)

    def now_s(self) -> float:
        """Seconds in service."""
        return self._clock.monotonic_s() - self._started_s

    def take_up(self, service_s: float) -> None:
        """Continues from a later time of another replica."""
        self._started_s = min(self._started_s, self._clock.monotonic_s() - service_s)


def read(connection: sa.Connection) -> float:
    """Returns the stored time."""
    return float(connection.execute(sa.select(SERVICE_CLOCK.c.seconds)).scalar_one())


def advance(connection: sa.Connection, service_s: float) -> float:
    """Advances the stored time, and returns it: another replica may have advanced it further."""
    connection.execute(sa.update(SERVICE_CLOCK).where(SERVICE_CLOCK.c.seconds < service_s).values(seconds=service_s))
    return read(connection)
