"""The settings of the agent by section: names, types, limits, defaults and documentation.

`edge-agent.toml` is generated from this module, and `load` reads it. Secrets are named by file and never written here,
so that a configuration can be shown and logged.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from firstline_core.protocol.cors import Origin
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.settings_sections import DecodingBounds, Log, Positive, Section, Tracing
from firstline_core.routing.policy import PolicyKind
from firstline_core.storage.seals import CREDENTIAL
from firstline_core.storage.settings import AuthoritiesPath, FilePath, expanded
from firstline_core.units import MIB

_PLAIN_MQTT_PORT = 1883

NotNegative = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Share = Annotated[float, Meta(ge=0, le=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
KeyPath = Annotated[str, Meta(extra={"path": (CREDENTIAL,)})]
# A name in MQTT topics: no slash, no wildcard.
DeviceId = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")]

BASIC = frozenset(
    {
        *("agent.device_id", "agent.state_dir", "api.host", "api.port", "api.token_file", "models.directories"),
        *("models.threads", "links.kind", "links.url", "links.token_file", "links.host", "policy.kind", "log.level"),
    }
)
"""The keys that most installations set; all others are advanced."""


class AgentSection(Section, frozen=True, kw_only=True):
    device_id: DeviceId = ""
    """This device's name towards the gateway and the broker; empty takes the host's name."""
    state_dir: FilePath = "~/.local/state/firstline-edge"
    """Outbox, result cache and decision log live here; made with mode 0700."""
    use_identity: bool = True
    """Takes the name, the links' certificates and, without [[links]], the links themselves from what `edge-agent join`
    stored."""


class ApiSection(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs `token_file`."""
    port: Port = 8070
    """TCP port; 0 lets the system choose, and the ready line says which."""
    socket: Annotated[str, Meta(max_length=100, extra={"path": ()})] = ""
    """A Unix socket to listen on too, for programs on this device; empty for no socket."""
    socket_mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "660"
    """File mode of the socket, as for chmod: owner and group may write."""
    token_file: FilePath = ""
    """File with one `NAME:TOKEN` a line; empty means no token, on loopback only."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may call from a browser, such as ["https://example.com"]; ["*"] needs `token_file`."""
    body_limit_bytes: Positive = 64 * MIB
    """Largest request body that is read, at most `bodies_limit_bytes`; a larger one is answered with 413."""
    bodies_limit_bytes: Positive = 128 * MIB
    """Total size of the bodies of all requests in progress; a request that does not fit is answered with 503."""
    waiting_limit: Positive = 1024
    """Requests that may wait for their turn; one more, or one that would be answered too late, gets 503."""
    streams_limit: Positive = 64
    """Event streams that may be open at once; one more is answered with 503."""
    stream_heartbeat_s: Annotated[float, Meta(gt=0)] = 15.0
    """Seconds after which a silent event stream says that it is alive."""


def request_limits(section: ApiSection) -> Limits:
    """Returns the limits of requests to the agent, and of the gateway's answers."""
    return Limits(
        body_bytes=section.body_limit_bytes, json_bytes=min(DEFAULT_LIMITS.json_bytes, section.body_limit_bytes)
    )


class GrpcSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """Also answer V2 over gRPC, on `api.host` and with its tokens; needs the packages of firstline[edge,grpc]."""
    port: Port = 8071
    """TCP port; 0 lets the system choose."""
    calls_limit: Positive = 1024
    """Calls at the same moment; one more is refused."""


class EncryptionSection(Section, frozen=True, kw_only=True):
    key_file: KeyPath = ""
    """File with the keys for outbox and cache on disk, the current one first; "credential:NAME" is a systemd
    credential."""


class ModelsSection(Section, frozen=True, kw_only=True):
    directories: tuple[FilePath, ...] = ()
    """Bundles, or folders of bundles, e.g. ["/var/lib/firstline/models"]; in a folder, each subfolder, or
    subfolder/version, that holds a manifest.json is a bundle."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """ONNX Runtime execution providers, preferred first; one that is absent is an error, not silently the CPU."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 1
    """Threads that one run of a model may use; 0 leaves it to the runtime."""
    as_planned: bool = False
    """Use the fastest provider and threads that `edge-agent profile create` found here, if it has measured them."""
    workers: Positive = 2
    """Concurrent runs of models that are too slow for the event loop."""
    copies_limit_bytes: NotNegative = 64 * MIB
    """Largest bundle of which a copy is stored for when its files are damaged; 0 stores no copies."""
    queue_limit: NotNegative = 1024
    """Runs that may wait for a worker; if more wait, or for too long, requests that may leave the device go to the
    cloud."""

    @property
    def folders(self) -> list[Path]:
        """The directories as paths."""
        return [Path(directory) for directory in self.directories]


class DecodingSection(DecodingBounds, frozen=True, kw_only=True):
    total_memory_bytes: Positive = 256 * MIB
    """Working memory of all large inputs under way; one caller may hold half of it, or one input."""


class CacheSection(Section, frozen=True, kw_only=True):
    memory_limit_bytes: NotNegative = 16 * MIB
    """Memory front of the result cache; 0 switches it off."""
    disk_limit_bytes: NotNegative = 256 * MIB
    """Result cache on disk, which outlives a restart; 0 switches it off. Results of local_only requests never go
    there."""
    ttl_s: Annotated[float, Meta(gt=0)] = 86_400.0
    """Seconds that a result is reused."""


class PolicySection(Section, frozen=True, kw_only=True):
    kind: PolicyKind = "certified"
    """Policy that decides which edge answers are accepted: "certified" or "value", or a baseline for comparison:
    "threshold", "edge_only", "cloud_only", "random", "sedna", "groundlight". Only the first two certify answers."""
    least_value: Share = 0.0
    """For value: P(edge wrong and full right) below which an edge answer is accepted, however low the price."""
    threshold: float = 0.9
    """For threshold and groundlight: the score from which an edge answer is accepted, instead of the bundle's."""
    rate: Share = 0.3
    """For random: the part that is escalated."""
    threshold_cross_entropy: float = 0.5
    """For sedna: the certainty (one minus the entropy over its maximum) from which an edge answer is accepted."""
    min_time_between_escalations_s: Amount = 2.0
    """For groundlight: the pause after each escalation of a model."""
    limit_bytes: Positive = 8 * MIB
    """Largest payload that this device computes itself; a larger one is `heavy` and goes to the cloud."""
    min_threshold: float = -math.inf
    """Raises a bundle's threshold if that is lower; it can only make this device more careful."""
    default_timeout_ms: Positive = 2_000
    """Deadline of a request without one."""
    deadline_reserve_ms: NotNegative = 20
    """Reserved of a deadline, at most a quarter of it, to store the promise and write the edge answer in time."""


class BudgetSection(Section, frozen=True, kw_only=True):
    """Spending limits; 0 means no limit. Nothing is carried over to the next hour or day of UTC.

    If a budget runs short, this device answers the least valuable escalations itself: `final`, `certified: false`,
    reason `budget`.
    """

    bytes_per_hour: NotNegative = 0
    """Bytes sent and received in an hour, over all links."""
    bytes_per_day: NotNegative = 0
    """The same for a day; both may be set."""
    joules_per_hour: Amount = 0.0
    """Energy of links and runs, by the costs stated below."""
    joules_per_day: Amount = 0.0
    """The same for a day; both may be set."""
    money_per_hour: Amount = 0.0
    """Money, in whatever is counted below."""
    money_per_day: Amount = 0.0
    """The same for a day; both may be set."""


class CostsSection(Section, frozen=True, kw_only=True):
    worth: Annotated[float, Meta(gt=0)] = 1.0
    """Value of a corrected answer, in money: an escalation is worth this times the probability that it corrects one."""
    money_per_request: Amount = 0.0
    """Price of the gateway's answer to one request."""
    money_per_mib: Amount = 0.0
    """Price of a MiB over a link with `metered = true`."""
    money_per_joule: Amount = 0.0
    """Value of a joule, although it is not billed."""
    joules_per_run: Amount = 0.0
    """Energy of running the edge model on one row."""
    joules_per_core_second: Amount = 0.0
    """Energy of a busy core per second in addition to the idle device, if no sensor measures power; 0 if unknown."""
    watts_idle: Amount = 0.0
    """Power of the idle device; 0 if unknown. It is subtracted from the measured power of a model's run."""
    metered_factor: Annotated[float, Meta(ge=1, le=1000)] = 4.0
    """Factor by which bytes and money cost more over a metered link."""
    heat_limit_c: float = 80.0
    """Degrees Celsius that the device should stay below; from 5 below, joules cost more."""


class HardwareSection(Section, frozen=True, kw_only=True):
    root: str = "/"
    """Where the kernel's files (proc, sys) begin; another one where a container sees the host's elsewhere."""
    period_s: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    """Seconds between two readings of the sensors, sooner where an agent that adapts gets short of memory; `edge-agent
    hardware` shows them."""
    power_rails: tuple[str, ...] = ()
    """Rails that together are the whole device's power, by the names in `edge-agent hardware get`; empty takes an
    input rail that is known (VDD_IN), a platform's domain (psys), a battery that drains, or the stated costs."""
    survey: bool = True
    """Try once, in the background, which execution providers really work on this device."""


class AdaptationSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """Hold several of a bundle's edge variants, and answer with the best that heat, memory, battery and time allow."""
    variants_limit: Annotated[int, Meta(ge=2, le=16)] = 3
    """Maximum number of a bundle's variants that are held: the best, the cheapest, then those between."""
    heat_margin_c: Annotated[float, Meta(ge=0.5, le=40)] = 3.0
    """Degrees Celsius below costs.heat_limit_c at which a cheaper variant is used."""
    memory_reserve_bytes: NotNegative = 64 * MIB
    """Memory that stays available to everything else (64 MiB); below it the better variants are unloaded."""
    battery_empty: Share = 0.1
    """Charge (0 to 1) up to which only the cheapest variant runs, unless external power is connected."""
    battery_full: Share = 0.6
    """Charge from which on the best may."""
    settle_s: Amount = 10.0
    """Seconds that a step down has to show its effect, before the next one that is not urgent."""
    dwell_s: Annotated[float, Meta(gt=0)] = 20.0
    """Seconds of room before a step up; doubled each time that one has to be taken back soon."""


class LinkSection(Section, frozen=True, kw_only=True):
    kind: Literal["http", "mqtt"]
    """How the gateway is reached: http or mqtt."""
    url: str = ""
    """For http: the gateway, e.g. "https://gateway.example:8443"."""
    plain_http: bool = False
    """For http: allow an http:// URL beyond loopback, on a network that is protected otherwise."""
    token_file: FilePath = ""
    """For http: file with this device's token; leave it out on a device that has joined."""
    host: str = ""
    """For mqtt: the broker."""
    port: Port = 1883
    """For mqtt: the broker's port; 8883 is usual with TLS. 1883 never shows the device's identity."""
    username: str = ""
    """For mqtt: empty for a broker without passwords."""
    password_file: FilePath = ""
    """For mqtt: file with the password."""
    topic_prefix: str = "firstline/v1"
    """For mqtt: first levels of every topic, the same as the gateway's."""
    keepalive_s: Annotated[int, Meta(ge=5, le=3600)] = 60
    """For mqtt: seconds between keep-alive packets (60: 0.2 MB a day); a lost connection is noticed within twice
    that."""
    tls_ca_file: AuthoritiesPath = ""
    """Authorities to trust; empty is the usual ones for https, and no TLS for mqtt ("system" is the usual ones)."""
    tls_certificate_file: FilePath = ""
    """For mqtt: this device's own certificate, where the broker asks for one."""
    tls_key_file: FilePath = ""
    """For mqtt: the certificate's key."""
    metered: bool = False
    """Bytes over this link cost money: see costs.money_per_mib and costs.metered_factor."""
    joules_per_mib_sent: Amount = 0.0
    """Energy of sending a MiB over this link."""
    joules_per_mib_received: Amount = 0.0
    """Energy of receiving a MiB over this link."""
    proxy: str = ""
    """For http: URL of an HTTP proxy; the environment's proxy variables are not read."""

    @property
    def shows_identity(self) -> bool:
        """Whether the link presents the certificate of a joined device: it has TLS, and no credentials of its own."""
        if self.kind == "http":
            return self.url.startswith("https:") and not (self.token_file or self.tls_ca_file)
        return self.port != _PLAIN_MQTT_PORT and not (self.username or self.tls_ca_file or self.tls_certificate_file)


class BreakerSection(Section, frozen=True, kw_only=True):
    failure_threshold: Positive = 3
    """Consecutive failures that open a link's circuit breaker."""
    open_ms: Positive = 1_000
    """Wait before an open breaker's link is probed; it doubles each time that the link fails again, with jitter."""
    open_max_ms: Positive = 30_000
    """The longest such wait."""


class HedgeSection(Section, frozen=True, kw_only=True):
    enabled: bool = True
    """Ask the full model while the edge model runs, if one after the other would miss the deadline."""
    share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of the requests to a slow edge model that may be sent early."""
    burst: Annotated[float, Meta(ge=1)] = 5.0
    """Early calls that were not needed and are kept for later."""
    min_escalation_rate: Annotated[float, Meta(ge=0, le=1)] = 0.25
    """Only for models with at least this share of recent escalations."""


class RetriesSection(Section, frozen=True, kw_only=True):
    share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Share of all calls that may be retried after a failure: over the next link, or from the outbox."""
    per_second: Annotated[float, Meta(gt=0)] = 1.0
    """Additional retries per second, so that a quiet device may retry too."""
    burst: Annotated[float, Meta(ge=1)] = 10.0
    """Retries that were not needed and are kept for later."""


class OutboxSection(Section, frozen=True, kw_only=True):
    limit_items: Positive = 10_000
    """Promised corrections stored at the same time; a full outbox refuses new ones and drops none."""
    limit_bytes: Positive = 256 * MIB
    """Payload stored at the same time."""
    max_age_s: Annotated[float, Meta(gt=0)] = 86_400.0
    """Age at which a promise ends as `expired`."""
    answers_limit_bytes: Positive = 64 * MIB
    """Final answers stored for requests by id; the oldest are deleted first."""
    answers_age_s: Annotated[float, Meta(gt=0)] = 7 * 86_400.0
    """Age at which a stored answer is deleted."""


class AuditSection(Section, frozen=True, kw_only=True):
    per_hour: Annotated[float, Meta(ge=0)] = 60.0
    """Most edge answers that the full model checks in an hour; 0 switches the audits off."""
    bytes_per_hour: Annotated[float, Meta(ge=0)] = 32.0 * MIB
    """Payload that they may send in an hour."""
    max_share: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """Largest share of edge answers that is audited, however much the budgets allow."""
    spacing_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    """Least seconds between two audited answers of one `source` of requests: audits of frames that resemble each other
    say little more than one."""
    on_alarm: Literal["tighten", "escalate"] = "tighten"
    """Effect of an alarm: "tighten" accepts only edge answers that the audits still find good; "escalate" accepts
    none."""
    escalations_per_hour: Annotated[float, Meta(ge=0)] = 360.0
    """Additional escalations that an alarm may cause in an hour, unless the gateway sets a number."""
    fleet_devices: Positive = 1
    """Devices that audit the same promise, at least: each alarms by itself at the certificate's delta over this number,
    or over the one that the gateway tells, if that is larger."""
    samples_limit_bytes: Positive = 2 * MIB
    """Size of each of the two files of answers whose truth is known, from which `edge-agent audit list` prints."""


class FleetSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """Run what the gateway's fleet desires of this device, and report what runs and how well. See
    docs/concepts/fleet.md."""
    poll_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 60.0
    """Without a broker, and while it is away: seconds between two polls of the desired state over HTTP."""
    telemetry_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 300.0
    """Seconds between two reports of counts, at most."""
    root_file: FilePath = ""
    """Root metadata (root.json) with the trusted signing keys; without it no model comes from the fleet."""
    download_bytes_per_s: Amount = 0.0
    """Average download speed of models, which leaves bandwidth to requests; 0 means no limit."""
    download_jitter_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """Longest random delay before a download, which prevents a thundering herd."""
    trial_tries: Annotated[int, Meta(ge=1, le=100)] = 3
    """Starts of the agent that a trial may take before it is rolled back."""
    trial_s: Annotated[float, Meta(ge=0, le=86_400)] = 300.0
    """Seconds that a new model, or a new configuration, answers requests before it stays."""
    profiling: bool = True
    """Measure bundles of this device while it answers requests, if the fleet asks for it. See
    docs/how-to/profile-devices.md."""
    profiling_battery: Share = 0.5
    """Battery charge (0 to 1) below which nothing is measured for the fleet without external power; 0 measures
    always."""
    locked: tuple[str, ...] = ()
    """Settings that no configuration of the fleet changes: sections or keys, e.g. ["policy", "audit.per_hour"]."""


class LogSection(Log, frozen=True, kw_only=True):
    requests: bool = True
    """One line for each answer; local_only requests never have one."""
    decisions_limit_bytes: Positive = 8 * MIB
    """Size of each of the decision log's two files, from which `edge-agent explain` tells."""


class EdgeSettings(Section, frozen=True, kw_only=True):
    """Everything that can be set, section by section."""

    agent: AgentSection = AgentSection()
    api: ApiSection = ApiSection()
    grpc: GrpcSection = GrpcSection()
    encryption: EncryptionSection = EncryptionSection()
    models: ModelsSection = ModelsSection()
    decoding: DecodingSection = DecodingSection()
    cache: CacheSection = CacheSection()
    policy: PolicySection = PolicySection()
    budget: BudgetSection = BudgetSection()
    costs: CostsSection = CostsSection()
    hardware: HardwareSection = HardwareSection()
    adaptation: AdaptationSection = AdaptationSection()
    links: tuple[LinkSection, ...] = ()
    """Connections to the gateway, preferred first: one [[links]] section each. Without any, the ones that `edge-agent
    join` received. A link with TLS that names no token, user or authority of its own presents the certificate of a
    device that has joined."""
    breaker: BreakerSection = BreakerSection()
    hedge: HedgeSection = HedgeSection()
    retries: RetriesSection = RetriesSection()
    outbox: OutboxSection = OutboxSection()
    audit: AuditSection = AuditSection()
    fleet: FleetSection = FleetSection()
    tracing: Tracing = Tracing()
    log: LogSection = LogSection()

    @property
    def device_id(self) -> str:
        return self.agent.device_id or socket.gethostname().split(".")[0]

    @property
    def state_dir(self) -> Path:
        return expanded(self.agent.state_dir)


def link_names(sections: Sequence[LinkSection]) -> list[str]:
    """Returns the name of each link: its kind, with a number for the second and further links of one kind."""
    kinds = [section.kind for section in sections]
    return [
        f"{kind}-{before + 1}" if (before := kinds[:position].count(kind)) else kind
        for position, kind in enumerate(kinds)
    ]
