"""The metric of rollouts: their number by state."""

from __future__ import annotations

from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.rollouts import records
from firstline_gateway.store.store import Store


class RolloutGauges:
    """Exports the number of rollouts by state, which is read from the store from time to time.

    Args:
        store: of the rollouts.
        metrics: the gateway's.
    """

    def __init__(self, store: Store, metrics: RequestMetrics) -> None:
        self._store = store
        self._latest: dict[tuple[str, ...], float] = {}
        metrics.readings(
            "rollouts", "Rollouts by state; a paused one waits for a person.", ("state",), lambda: self._latest
        )

    async def refresh(self) -> None:
        """Reads the number of rollouts from the store."""
        counts = await self._store.read(records.by_state)
        self._latest = {(state.value,): float(count) for state, count in counts.items()}
