"""The operations of a running agent for operators: status, metrics, rollbacks, and the erasure of stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firstline_core.clock import Clock
from firstline_core.errors import RequestError
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.erasure import Erasure
from firstline_edge.api.status import AgentStatus
from firstline_edge.telemetry.recorder import Recorder

if TYPE_CHECKING:  # httpx takes time and memory to import
    from firstline_edge.fleet.updater import Updater


class Operations:
    """The operations of one agent.

    Args:
        plane: answers requests.
        status: describes the agent.
        metrics: exposed to Prometheus.
        recorder: brings the metrics up to date.
        updater: takes back what the fleet installed; None on a device that is not a member of a fleet.
        erasure: erases what is stored.
        clock: for the time since the start.
    """

    def __init__(
        self,
        plane: EdgeDataPlane,
        *,
        status: AgentStatus,
        metrics: RequestMetrics,
        recorder: Recorder,
        updater: Updater | None,
        erasure: Erasure,
        clock: Clock,
    ) -> None:
        self.erasure = erasure
        self._plane = plane
        self._status = status
        self._metrics = metrics
        self._recorder = recorder
        self._updater = updater
        self._clock = clock
        self._started_s = clock.monotonic_s()

    def status(self) -> dict[str, Any]:
        """Returns the status of the agent; see `AgentStatus`."""
        return self._status.describe(ready=self._plane.ready(), uptime_s=self._clock.monotonic_s() - self._started_s)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Returns the metrics in a form that the `Accept` header names, and its content type."""
        self._recorder.flush()
        return self._metrics.render(accept)

    async def roll_back(self, model: str) -> None:
        """Rolls a model back to the one before the fleet's latest update.

        Raises:
            RequestError: this device is not a member of a fleet, or there is no previous model.
        """
        await self._of_fleet("models").roll_back(model)

    async def roll_back_configuration(self) -> None:
        """Rolls the settings back to those before the fleet's latest configuration.

        Raises:
            RequestError: this device is not a member of a fleet, or there is no previous configuration.
        """
        await self._of_fleet("configuration").roll_back_configuration()

    def _of_fleet(self, what: str) -> Updater:
        if self._updater is None:
            raise RequestError(
                f"This device takes no {what} from a fleet, so there is no previous version to roll back to."
            )
        return self._updater
