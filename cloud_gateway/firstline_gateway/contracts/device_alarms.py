"""The alarms that devices raised by their own audits, as each says with whatever it sends.

They are shown, and tell no other device anything: a single bad lens, or a liar, must not alarm a fleet. In memory only,
for a device repeats its alarm until it is over, and so each process of a gateway learns of it again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from firstline_core.telemetry.logs import logger
from firstline_core.types import ModelKey

log = logger(__name__)

_DAY_S = 86_400.0
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class DeviceAlarm:
    """The alarm that one device reports for one version's promise.

    Attributes:
        edge_digest: of the edge variant whose promise it is.
        since_s: wall time at which this gateway first heard of it.
        last_s: and at which it last did.
        ended_s: at which the device said it no more; None while it does.
    """

    model: ModelKey
    device: str
    edge_digest: str
    since_s: float
    last_s: float
    ended_s: float | None = None


class DeviceAlarms:
    """Those of the last day, the longest silent first."""

    def __init__(self) -> None:
        self._alarms: OrderedDict[tuple[ModelKey, str], DeviceAlarm] = OrderedDict()
        self._heard_s: dict[tuple[ModelKey, str], float] = {}

    def hear(self, model: ModelKey, device: str, edge_digest: str, now_s: float, *, heard_s: float) -> None:
        """Takes up what a request says.

        Args:
            model: that it asks for.
            device: the device that sent the request.
            edge_digest: of the variant whose promise the device's own audits broke; "" where it says none.
            now_s: wall time, to be shown.
            heard_s: monotonic time, by which alarms are forgotten.
        """
        key = (model, device)
        known = self._alarms.get(key)
        if edge_digest:
            again = known is not None and known.ended_s is None and known.edge_digest == edge_digest
            since_s = known.since_s if known is not None and again else now_s
            self._note(DeviceAlarm(model, device, edge_digest, since_s, now_s), heard_s)
            if not again:
                log.error("a device's own audits broke its contract", **_facts(self._alarms[key]))
            while len(self._alarms) > _REMEMBERED:
                self._forget_first()
        elif known is not None and known.ended_s is None:
            self._note(replace(known, last_s=now_s, ended_s=now_s), heard_s)
            log.warning("a device's own alarm ended", **_facts(self._alarms[key]))

    def listed(self, now_s: float) -> list[DeviceAlarm]:
        """Those under way, then those that ended within the last day; of each the latest to begin first.

        Args:
            now_s: monotonic time.
        """
        while self._alarms and self._heard_s[next(iter(self._alarms))] <= now_s - _DAY_S:
            self._forget_first()
        return sorted(self._alarms.values(), key=_order)

    def _note(self, alarm: DeviceAlarm, heard_s: float) -> None:
        key = (alarm.model, alarm.device)
        self._alarms[key], self._heard_s[key] = alarm, heard_s
        self._alarms.move_to_end(key)

    def _forget_first(self) -> None:
        key, _ = self._alarms.popitem(last=False)
        del self._heard_s[key]


def _order(alarm: DeviceAlarm) -> tuple[bool, float, str]:
    return alarm.ended_s is not None, -alarm.since_s, alarm.device


def _facts(alarm: DeviceAlarm) -> dict[str, object]:
    model = alarm.model
    return {"device": alarm.device, "model": model.name, "version": model.version, "edge_digest": alarm.edge_digest}
