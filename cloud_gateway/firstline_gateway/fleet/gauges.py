"""Metrics of all devices together, for monitoring that cannot reach them: devices are behind NAT.

No metric names a device. Values of the configured tag and versions of the agent are bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec import Struct
from sqlalchemy import Connection, Double, cast, func

from firstline_core.clock import Clock
from firstline_core.fleet.rest import EXPIRING_SHARE, Presence
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.fleet.overview import groups
from firstline_gateway.fleet.tiers import OUTCOMES
from firstline_gateway.fleet.totals import COUNTS
from firstline_gateway.settings import settings
from firstline_gateway.store.store import Store

REFRESH_S = 30.0
"""Interval of `FleetGauges.refresh` in seconds."""
VALUES_LIMIT = 20
"""Most values of a label whose values people or devices choose; the rest is `OTHER`."""
OTHER = "other"

_ALL, _UNTAGGED, _UNKNOWN = "all", "untagged", "unknown"
LOW_DISK_SHARE = 0.05
"""Free share of a disk below which it counts as a problem."""
_WORSE: Mapping[str, Callable[[Iterable[float]], float]] = {
    "outbox_oldest_seconds": max,
    "outbox_items": sum,
    "disk_free_ratio": min,
    "temperature_celsius": max,
    "certificate_seconds": min,
}
"""The extreme of several groups of devices, by metric."""
_C = COUNTS.c


class FleetState(Struct, frozen=True):
    """The fleet at one moment.

    Attributes:
        devices: by presence and value of the tag.
        agents: devices by the agent's version, without revoked ones.
        problems: devices by problem, of those that are online or late.
        extremes: the worst reading of such devices, by metric; a reading that no device has is absent.
    """

    devices: Mapping[tuple[str, ...], float] = {}
    agents: Mapping[str, int] = {}
    problems: Mapping[str, int] = {}
    extremes: Mapping[str, float] = {}


@dataclass(eq=False)
class FleetGauges:
    """Exports the state of the fleet, which is read from the store from time to time.

    Args:
        store: of the fleet.
        metrics: the gateway's.
        fleet_settings: name the tag.
        certificate_days: the life of a device's certificate.
        clock: gives wall time.
        activity: returns what devices counted since this process started, by name; see `TierCounter.sums`.
    """

    store: Store
    metrics: RequestMetrics
    fleet_settings: settings.FleetSection
    certificate_days: float
    clock: Clock
    activity: Callable[[], Mapping[str, float]]

    def __post_init__(self) -> None:
        self._latest = FleetState()
        metrics, activity = self.metrics, self.activity
        metrics.readings(
            "fleet_devices",
            "Accepted devices by presence (online, late, asleep, revoked) and value of fleet.metrics_tag.",
            ("presence", "group"),
            lambda: self._latest.devices,
        )
        metrics.readings(
            "fleet_agents",
            "Devices that are not revoked, by the version of their agent.",
            ("version",),
            lambda: {(version,): float(count) for version, count in self._latest.agents.items()},
        )
        metrics.readings(
            "fleet_problem_devices",
            "Devices that are online or late, by problem: certificate (its renewal is overdue), disk (nearly full), "
            "heat (the hardware throttles), link (a link is down).",
            ("problem",),
            lambda: {(problem,): float(count) for problem, count in self._latest.problems.items()},
        )
        for name, description in (
            ("outbox_oldest_seconds", "Age of the oldest promised correction of any device that is online or late."),
            ("outbox_items", "Promised corrections that wait on devices that are online or late."),
            ("disk_free_ratio", "Smallest free share of the disk of a device that is online or late."),
            ("temperature_celsius", "Highest temperature of a device that is online or late."),
            ("certificate_seconds", "Shortest time until the certificate of a device that is online or late ends."),
        ):
            metrics.readings(f"fleet_{name}", description, (), lambda name=name: self._extreme(name))  # type: ignore[misc]
        metrics.readings(
            "fleet_answers_total",
            "Rows of devices by the outcome, as devices report them: kept, escalated, errors.",
            ("outcome",),
            lambda: {(outcome,): activity()[outcome] for outcome in OUTCOMES},
        )
        metrics.readings(
            "fleet_objects_total",
            "Objects that the edge models of devices reported.",
            (),
            lambda: {(): activity()["objects"]},
        )
        metrics.readings(
            "fleet_payload_bytes_total",
            "Inputs that devices sent to a gateway, without protocol overhead.",
            (),
            lambda: {(): activity()["payload_bytes"]},
        )

    async def refresh(self) -> None:
        """Reads the fleet from the store."""
        now_s, tag = self.clock.wall_s(), self.fleet_settings.metrics_tag
        expiring_s = self.certificate_days * 86_400 * EXPIRING_SHARE
        self._latest = await self.store.read(lambda on: fleet_state(on, now_s, tag=tag, expiring_s=expiring_s))

    def _extreme(self, name: str) -> dict[tuple[str, ...], float]:
        value = self._latest.extremes.get(name)
        return {} if value is None else {(): value}


def fleet_state(connection: Connection, now_s: float, *, tag: str, expiring_s: float) -> FleetState:
    """Reads the state of all accepted devices.

    Args:
        connection: within a transaction.
        now_s: wall time.
        tag: whose values are counted; "" for none.
        expiring_s: remaining life of a certificate below which it counts as a problem.
    """
    devices: Counter[tuple[str, str]] = Counter()
    agents: Counter[str] = Counter()
    extremes = {"outbox_oldest_seconds": 0.0, "outbox_items": 0.0}
    left_s = _C.certificate_ends_s - now_s
    counted = {
        "certificate": left_s < expiring_s,
        "disk": _C.disk_free_share < LOW_DISK_SHARE,
        "heat": _C.throttled,
        "link": _C.links_down > 0,
    }
    problems: Counter[str] = Counter(dict.fromkeys(counted, 0))
    sums = {
        "outbox_items": func.sum(cast(_C.outbox_items, Double)),
        "outbox_oldest_seconds": func.max(_C.outbox_oldest_s),
        "disk_free_ratio": func.min(_C.disk_free_share),
        "temperature_celsius": func.max(_C.hottest_c),
        "certificate_seconds": func.min(left_s),
    } | {problem: func.count().filter(has_it) for problem, has_it in counted.items()}
    for group in groups(connection, now_s, **sums):
        if not group.accepted:
            continue
        presence = Presence(group.presence)
        devices[presence, group.tags.get(tag, _UNTAGGED) if tag else _ALL] += group.devices
        if presence is not Presence.REVOKED:
            agents[group.agent_version or _UNKNOWN] += group.devices
        if presence in (Presence.ONLINE, Presence.LATE):
            for problem in counted:
                problems[problem] += getattr(group, problem)
            for name, worse in _WORSE.items():
                if (value := getattr(group, name)) is not None:
                    extremes[name] = worse((value, extremes[name])) if name in extremes else value
    return FleetState(_by_group(devices), _bounded(agents), problems, extremes)


def _by_group(devices: Counter[tuple[str, str]]) -> dict[tuple[str, ...], float]:
    """Returns the devices by presence and group, with zeros, and a bounded number of groups."""
    sizes: Counter[str] = Counter()
    for (_, group), count in devices.items():
        sizes[group] += count
    shown = _bounded(sizes) or {_ALL: 0}
    found: dict[tuple[str, ...], float] = {(each.value, group): 0.0 for each in Presence for group in shown}
    for (each, group), count in devices.items():
        found[each, group if group in shown else OTHER] += count
    return found


def _bounded(counts: Counter[str]) -> dict[str, int]:
    """Returns the largest counts in a stable order, and the sum of the others."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = dict(ordered[:VALUES_LIMIT])
    rest = sum(count for _, count in ordered[VALUES_LIMIT:])
    if rest:
        found[OTHER] = found.get(OTHER, 0) + rest
    return found
