"""The counts of a device since its process started: sums and histograms of fixed size, whatever the traffic.

Counts only grow within a session, like Prometheus counters. A lost report is harmless, a repeated or late one is
recognised by its sequence, and the difference of two reports is the activity between them. `local_only` requests are
not counted.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.fleet.twin import Version
from firstline_core.storage.structs import FORMAT
from firstline_core.types import ContractAlarm, Count, ModelKey, Name

LATENCY_BOUNDS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
"""Upper bounds of the latency bins; one further bin has longer latencies."""

_Bins = Annotated[tuple[Count, ...], Meta(max_length=64)]
GROUPS_LIMIT = 128
"""Largest number of groups of a task that are counted; a task with more reports no counts by group."""
ENDED_LIMIT = 64
"""Largest number of ended promises in a report."""
GROUP_CHARACTERS = 256
"""Largest length of the name of a group or an event; longer ones are cut."""
_ByGroup = Annotated[dict[Annotated[str, Meta(max_length=GROUP_CHARACTERS)], Count], Meta(max_length=2 * GROUPS_LIMIT)]


class ModelCounts(Struct, frozen=True):
    """One version of a model on one device.

    Attributes:
        rows: of all requests; each was kept, escalated, or ended in an error.
        kept: answered by the edge model or its cached outputs.
        escalated: sent, or to be sent, to the full model.
        errors: rows without an answer.
        latency: requests by latency, see `LATENCY_BOUNDS_MS`.
        latency_sum_ms: sum of all latencies.
        scores: rows by score, in the bins of the certificate's histogram; () without one.
        audited: edge answers that the full model checked.
        audited_empty: audited answers in which no event can occur, because neither model reports anything.
        disagreed: audited answers that differ from the full model's.
        losses: sum of the losses of audited answers, each 0 to 1; the same number where losses have no grades.
        objects: numbers of objects that the edge model reported, by group of classes; see `Task.occurrences`.
        event_audits: audited answers in which an event can occur, by event; see `Task.event`.
        event_losses: audited answers in which it occurred.
        alarm: whether the contract's alarm is active, whatever raised it.
        device_alarm: the alarm that this device's own audits raised; None if they raised none.
        saved_bytes: inputs of the kept rows, which were not sent.
        saved_mj: energy of sending them over the first link that could be used, as its settings state it.
    """

    name: Name
    version: Version
    rows: Count = 0
    kept: Count = 0
    escalated: Count = 0
    errors: Count = 0
    latency: _Bins = ()
    latency_sum_ms: Annotated[float, Meta(ge=0)] = 0.0
    scores: _Bins = ()
    audited: Count = 0
    audited_empty: Count = 0
    disagreed: Count = 0
    losses: Annotated[float, Meta(ge=0)] = 0.0
    objects: _ByGroup = {}
    event_audits: _ByGroup = {}
    event_losses: _ByGroup = {}
    alarm: bool = False
    device_alarm: ContractAlarm | None = None
    saved_bytes: Count = 0
    saved_mj: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def key(self) -> ModelKey:
        return ModelKey(self.name, self.version)

    @property
    def telling_audits(self) -> int:
        """Returns the number of audits in which an event can occur; for a task without events, of all."""
        return max(0, self.audited - self.audited_empty)


class DeviceHealth(Struct, frozen=True):
    """The condition of a device at the moment of a report.

    Attributes:
        outbox_oldest_s: age of the oldest promised correction that has not arrived; 0 without one.
        links_down: links to the gateway that are down, or on which the gateway refuses this device.
        disk_free_share: free share of the disk of the state directory, 0 to 1; None if unknown.
        hottest_c: highest temperature in degrees Celsius; None if no sensor measures it.
        throttled: whether the hardware throttles.
        certificate_ends_s: wall time at which the certificate in use ends; None for a device with a key.
    """

    outbox_oldest_s: Annotated[float, Meta(ge=0)] = 0.0
    links_down: Annotated[int, Meta(ge=0, le=64)] = 0
    disk_free_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    hottest_c: float | None = None
    throttled: bool = False
    certificate_ends_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class EndedPromise(Struct, frozen=True):
    """A promise of a correction that has ended on the device.

    Attributes:
        request_id: of the provisional answer.
        version: of the model, as the answer has it.
        expired: whether it ended without an answer of the full model.
        changed: whether the final answer differs from the provisional one; None if it expired.
    """

    request_id: Annotated[str, Meta(min_length=1, max_length=64)]
    model: Annotated[str, Meta(max_length=64)]
    version: Annotated[str, Meta(max_length=64)]
    expired: bool = False
    changed: bool | None = None


class Telemetry(Struct, frozen=True):
    """One report.

    Attributes:
        session: id of the process that counts.
        sequence: increases with each report of a session.
        uptime_s: of that process.
        starts: number of starts of the agent on this device, from its state directory.
        unclean: number of processes that ended without a shutdown.
        payload_bytes: inputs that were sent to the gateway, without protocol overhead; retries count again.
        health: condition of the device at this moment.
        ended: promises that have ended, each at least once, if the gateway asks for them (`Desired.answers`).
    """

    session: Annotated[str, Meta(min_length=1, max_length=64)]
    sequence: Annotated[int, Meta(ge=0, le=2**53)]
    uptime_s: Annotated[float, Meta(ge=0)] = 0.0
    models: Annotated[tuple[ModelCounts, ...], Meta(max_length=64)] = ()
    starts: Count = 0
    unclean: Count = 0
    outbox_items: Count = 0
    payload_bytes: Count = 0
    health: DeviceHealth = DeviceHealth()
    ended: Annotated[tuple[EndedPromise, ...], Meta(max_length=ENDED_LIMIT)] = ()
    format: int = FORMAT


def latency_bin(ms: float) -> int:
    """Returns the bin of a latency."""
    return bisect_left(LATENCY_BOUNDS_MS, ms)
