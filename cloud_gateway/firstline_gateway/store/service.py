"""The store's own clock: the seconds in which gateways were in service, and no others.

What is kept so that nothing counts twice must not be forgotten because a wall clock was set ahead, nor be kept for ever
because it was set back. So it grows old by this clock, which no wall clock moves, which stands still while no gateway
runs, and which replicas share: each brings it forward by its monotonic time, and takes over where another had brought
it. Wall time is what people are shown.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from firstline_core.clock import Clock
from firstline_gateway.store.database import Database
from firstline_gateway.store.tables import SERVICE_CLOCK


class ServiceClock:
    """As one process of a gateway knows it; threads may share it.

    Args:
        database: where it is kept.
        clock: its monotonic time.

    Raises:
        StoreUnavailableError: the store refuses.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._clock = clock
        with database.reading() as connection:
            self._started_s = clock.monotonic_s() - read(connection)

    def now_s(self) -> float:
        """Seconds of service."""
        return self._clock.monotonic_s() - self._started_s

    def take_up(self, service_s: float) -> None:
        """Goes on from there, where another replica had brought it further."""
        self._started_s = min(self._started_s, self._clock.monotonic_s() - service_s)


def read(connection: Connection) -> float:
    """What the store's clock says."""
    return float(connection.execute(select(SERVICE_CLOCK.c.seconds)).scalar_one())


def advance(connection: Connection, service_s: float) -> float:
    """Brings the store's clock forward, and says where it is: another replica may have brought it further."""
    connection.execute(update(SERVICE_CLOCK).where(SERVICE_CLOCK.c.seconds < service_s).values(seconds=service_s))
    return read(connection)
