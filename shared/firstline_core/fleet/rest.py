"""The fleet's REST API for both sides: addresses, requests and answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.fleet.rollout_documents import RolloutSummary
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Brake, Desired, Reported

TWIN_PATH = "/fleet/v1/twin"
"""For devices: GET returns its `Desired` with the revision as ETag; 304 if it has not changed."""
REPORTED_PATH = "/fleet/v1/twin/reported"
"""For devices: PUT `Reported`."""
TELEMETRY_PATH = "/fleet/v1/twin/telemetry"
"""For devices: POST `Telemetry`."""
DEVICES_PATH = "/fleet/v1/devices"
BRAKE_PATH = "/fleet/v1/brake"
TIERS_PATH = "/fleet/v1/tiers"
"""Answers per tier over the last `hours`, of one `model` or of all."""
OVERVIEW_PATH = "/fleet/v1/overview"
CONTRACTS_PATH = "/firstline/v1/contracts"
WEBHOOKS_PATH = "/firstline/v1/webhooks"
TIERS_HOURS = 48
"""Maximum length of the history."""

TAG_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?\Z"
Tag = Annotated[str, Meta(pattern=TAG_PATTERN)]
"""The key or value of a tag."""


LATE_AFTER_S = 900.0
"""Silence after which a device counts as late: three times the default of the agents' `fleet.telemetry_s`."""
ASLEEP_AFTER_S = 7 * 86_400.0
"""Silence after which a device counts as asleep. Until then it is late, so monitoring shows an outage of days."""


class Presence(StrEnum):
    """Whether a device is heard from."""

    ONLINE = "online"
    """Its latest message is recent, and its connection has not ended."""
    LATE = "late"
    """Its connection has ended, or it is silent for longer than usual."""
    ASLEEP = "asleep"
    """It is silent for a week, or was never heard."""
    REVOKED = "revoked"
    """It has no access."""


def presence(last_seen_age_s: float | None, *, online: bool, revoked: bool) -> Presence:
    """Returns a device's presence.

    Args:
        last_seen_age_s: seconds since its latest message; None without one.
        online: whether its latest process runs as far as known.
        revoked: whether it was revoked.
    """
    if revoked:
        return Presence.REVOKED
    if last_seen_age_s is None or last_seen_age_s > ASLEEP_AFTER_S:
        return Presence.ASLEEP
    return Presence.ONLINE if online and last_seen_age_s <= LATE_AFTER_S else Presence.LATE


class Sort(StrEnum):
    """The order of devices in a list."""

    NAME = "name"
    LAST_SEEN = "last_seen"
    """The longest silent first."""


class FleetDevice(Struct, frozen=True):
    """A device in the fleet manager's view.

    Attributes:
        accepted: whether it belongs to the fleet; other devices get no models.
        online: whether its latest process is running as far as known; `last_seen_age_s` is more reliable.
        last_seen_age_s: seconds since the last message; None without one.
        first_seen_s: wall time of the first message; None without one.
        reported: its reported state.
        desired: its desired state.
        revoked: whether it was revoked and has not enrolled again; rollouts leave it out.
        latest: its latest telemetry; None without any, and in lists.
        latest_age_s: seconds since that telemetry; None without `latest`.
    """

    name: str
    tags: dict[str, str]
    accepted: bool
    online: bool
    last_seen_age_s: float | None
    first_seen_s: float | None
    reported: Reported | None
    desired: Desired
    revoked: bool = False
    latest: Telemetry | None = None
    latest_age_s: float | None = None

    @property
    def presence(self) -> Presence:
        """Whether the device is heard from."""
        return presence(self.last_seen_age_s, online=self.online, revoked=self.revoked)


class FleetDevicePage(Struct, frozen=True):
    """A page of devices, sorted by name; `after` is the cursor of the next page (`?after=NAME`), None at the end."""

    devices: tuple[FleetDevice, ...]
    after: str | None


class DeviceChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a device.

    Attributes:
        tags: to be set; null removes a tag.
        accepted: true accepts the device permanently.
    """

    tags: Annotated[dict[Tag, Tag | None], Meta(max_length=64)] = {}
    accepted: bool = False


class BrakeState(Struct, frozen=True):
    """The brake of the fleet; None if it has none."""

    brake: Brake | None


class TierCounts(Struct, frozen=True):
    """Rows of all devices in one span of time, counted when the devices reported them.

    Attributes:
        at_s: wall time of its start.
        kept: answered on the device.
        escalated: sent, or to be sent, to the full model.
        errors: rows without an answer.
        requests: with a known latency.
        latency_ms: sum of these latencies.
        saved_bytes: inputs of the rows that were answered on the device, which were not sent.
        saved_mj: energy of sending them, in millijoules, as the settings of the devices' links state it.
    """

    at_s: float
    kept: int
    escalated: int
    errors: int
    requests: int = 0
    latency_ms: int = 0
    saved_bytes: int = 0
    saved_mj: int = 0


class AuditResult(StrEnum):
    """The result of the audits of a promise."""

    HOLDS = "holds"
    """Errors are at most as frequent as promised, and there are enough audits: twice the odds would alarm (95 %)."""
    ALARMED = "alarmed"
    TOO_LITTLE_EVIDENCE = "too_little_evidence"
    NOT_AUDITED = "not_audited"


class Contribution(Struct, frozen=True):
    """The audits of one device; `last_audit` is the time of the latest."""

    device: str
    audits: int
    disagreements: int
    last_audit: str


class Evidence(Struct, frozen=True):
    """The audits up to the end of one hour, which began at `at_s` (wall time).

    Attributes:
        audits: number of audits.
        e_value: evidence against the promise; the alarm is at 1 / level.
        risk: estimated mean loss.
    """

    at_s: float
    audits: int
    e_value: float
    risk: float


class ContractState(Struct, frozen=True):
    """The result of the audits of all devices for one promise.

    Attributes:
        promise: in a sentence.
        state: the result of the audits.
        audits: number of counted audits.
        audits_needed: number of audits by which an alarm is raised with a probability of 95 % if the odds of an error
            are twice the promised ones.
        level: the probability with which a promise that holds may ever alarm, its part of delta.
        variant: id of the edge variant; None if its bundle is not served any more.
        event: for example "missed person"; None for a promise about all accepted answers.
        finding: observed and promised share, in words.
        alarmed_since: time of the alarm; None while the promise holds.
        last_audit: time of the latest audit; None without audits.
        devices: number of devices that contributed audits.
        edge_digest: SHA-256 of the edge variant and its processing.
        threshold: the score from which its answers are accepted.
        epsilon: the promised share of errors, or mean loss.
        disagreements: number of audits in which the answers differ.
        risk: estimated mean loss; None without audits.
        e_value: evidence against the promise; the alarm is at 1 / level.
        e_value_peak: its largest value so far.
        first_audit: time of the first audit; None without audits.
        devices_last_hour: number of devices that requested this version within the last hour.
        escalations_per_hour: further escalations that each device may send after an alarm; None without one.
        served: whether this gateway serves the version.
        contributions: the devices with the most disagreements; only in the answer about one bundle.
        evidence: over time; only in the answer about one bundle.
    """

    bundle: str
    version: str
    variant: str | None
    event: str | None
    promise: str
    state: AuditResult
    epsilon: float
    audits: int
    audits_needed: int
    level: float
    finding: str = ""
    alarmed_since: str | None = None
    last_audit: str | None = None
    risk: float | None = None
    e_value: float = 1.0
    devices: int = 0
    served: bool = True
    edge_digest: str = ""
    threshold: float | None = None
    disagreements: int = 0
    e_value_peak: float = 1.0
    first_audit: str | None = None
    devices_last_hour: int = 0
    escalations_per_hour: float | None = None
    contributions: tuple[Contribution, ...] = ()
    evidence: tuple[Evidence, ...] = ()


class DeviceAlarm(Struct, frozen=True):
    """The alarm that the audits of one device raised, as the device reports it.

    Attributes:
        since: time at which it began.
        ended: time at which it ended; None while it lasts.
        event: whose promise is broken; None for the promise about all rows.
        edge_digest: of the edge variant whose promise it is.
        variant: id of that variant; None if its bundle is not served any more.
        last_said: time of the device's latest report of it.
    """

    bundle: str
    version: str
    device: str
    since: str
    ended: str | None
    event: str | None = None
    edge_digest: str = ""
    variant: str | None = None
    last_said: str = ""


class ContractStates(Struct, frozen=True):
    """The contracts of all bundles, or of one.

    Attributes:
        contracts: with audits.
        unaudited: the promises of served bundles that no audit tests yet.
        device_alarms: the latest alarms that the audits of single devices raised.
        bundle: name of the bundle; only in the answer about one.
        delta: the probability with which a contract that holds may ever alarm.
    """

    contracts: tuple[ContractState, ...]
    unaudited: tuple[ContractState, ...] = ()
    device_alarms: tuple[DeviceAlarm, ...] = ()
    delta: float = 0.05
    bundle: str = ""

    @property
    def lasting_alarms(self) -> tuple[DeviceAlarm, ...]:
        """The alarms of single devices that have not ended."""
        return tuple(one for one in self.device_alarms if one.ended is None)


class TierHistory(Struct, frozen=True):
    """Answers per tier over time.

    Attributes:
        span_s: length of each point; points without rows are left out.
        models: with requests in this time.
        points: in order.
    """

    span_s: float
    models: tuple[str, ...]
    points: tuple[TierCounts, ...]


class Outbox(Struct, frozen=True):
    """The corrections that a device still waits for, as it reported them.

    Attributes:
        oldest_s: age of the oldest when the device reported it.
        reported_s: time since the report (seconds).
    """

    device: str
    items: int
    oldest_s: float
    reported_s: float = 0.0


class ExpiringCertificate(Struct, frozen=True):
    """A device whose certificates all end soon; `ends_s` is the wall time of the last one."""

    device: str
    ends_s: float


class FleetOverview(Struct, frozen=True):
    """The state of the fleet at one moment.

    Attributes:
        at_s: wall time.
        devices: number of accepted devices by presence.
        unaccepted: number of devices that wait to be accepted, and get no models before.
        tag: the tag by whose values `by_tag` counts.
        by_tag: number of accepted devices by value of the tag and presence; "" without the tag.
        agent_versions: number of accepted devices with access by version of the agent; "" if it is unknown.
        outboxes: the devices with the oldest items in their outbox, at most `LISTED`.
        expiring: the devices whose certificates were not renewed, see `EXPIRING_SHARE`, the first to end first, at most
            `LISTED`.
        expiring_count: number of all these devices.
        waiting: the rollouts that wait for a person, newest first, at most `LISTED`.
        reported_s: time since the latest reports of accepted devices with access, the shortest and the longest
            (seconds): how old outboxes and answers are; None without a report.
    """

    at_s: float
    devices: dict[Presence, int]
    unaccepted: int
    tag: str
    by_tag: dict[str, dict[Presence, int]]
    agent_versions: dict[str, int]
    outboxes: tuple[Outbox, ...]
    expiring: tuple[ExpiringCertificate, ...]
    expiring_count: int
    waiting: tuple[RolloutSummary, ...] = ()
    reported_s: tuple[float, float] | None = None


LISTED = 10
EXPIRES_SOON_S = 14 * 86_400.0
EXPIRING_SHARE = 1 / 6
"""A certificate that ends within this time, with less of its life left, was not renewed: devices renew at a third."""


class WebhookState(Struct, frozen=True):
    """The state of a webhook.

    Attributes:
        problem: why the latest attempt failed; "" if it did not, or there was none.
        delivered: whether any message was ever delivered.
    """

    name: str
    problem: str
    delivered: bool


class WebhookStates(Struct, frozen=True):
    """All webhooks of a gateway."""

    webhooks: tuple[WebhookState, ...]


class WebhookTest(Struct, frozen=True):
    """The result of a test message.

    Attributes:
        name: of the webhook.
        message_id: the header `webhook-id` of the message.
        status: of the receiver's answer; None without one.
        latency_ms: until the answer or the failure.
        problem: why the message was not delivered; "" if it was.
        remedy: what to do about the problem; "" without one.
    """

    name: str
    message_id: str
    status: int | None
    latency_ms: float
    problem: str
    remedy: str
