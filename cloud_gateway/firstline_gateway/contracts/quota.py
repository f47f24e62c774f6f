"""The cost of an alarm: the devices of the last hour, and what each of them may escalate. Pure."""

from __future__ import annotations

from collections import OrderedDict

HOUR_S = 3600.0


def share_per_hour(capacity_per_hour: float, devices: int) -> float:
    """Returns how much one device may escalate after an alarm, so that all devices stay within the capacity.

    Args:
        capacity_per_hour: escalations that the gateway has room for.
        devices: the devices that sent a request within the last hour; at least 1.
    """
    return capacity_per_hour / max(1, devices)


class Seen:
    """The devices that asked within the last hour, each by its latest request."""

    def __init__(self) -> None:
        self._latest_s: OrderedDict[str, float] = OrderedDict()  # the longest silent first

    def see(self, device: str, now_s: float) -> None:
        """Notes a request.

        Args:
            device: the device that sent the request.
            now_s: on a monotonic clock, and never less than in an earlier call.
        """
        self._latest_s[device] = now_s
        self._latest_s.move_to_end(device)
        self._forget(now_s)

    def count(self, now_s: float) -> int:
        """How many there are."""
        self._forget(now_s)
        return len(self._latest_s)

    def _forget(self, now_s: float) -> None:
        while self._latest_s and next(iter(self._latest_s.values())) <= now_s - HOUR_S:
            self._latest_s.popitem(last=False)
