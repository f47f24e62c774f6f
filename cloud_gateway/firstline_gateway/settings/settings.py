"""The settings of the gateway. Every field has a default; `gateway.toml` shows them all, `load.py` reads it."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from msgspec import Meta, field

from firstline_core.protocol.cors import Origin
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.settings_sections import DecodingBounds, Log, Section, Tracing
from firstline_core.storage.settings import AuthoritiesPath, FilePath
from firstline_core.types import Name

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]

BASIC = frozenset(
    {
        *("api.host", "api.port", "tls.enabled", "tls.hosts", "identity.directory", "models.directory", "auth.mode"),
        *("store.url", "execution.providers", "mqtt.enabled", "broker.directory", "registry.blobs", "log.level"),
    }
)
"""The keys that most installations set; all others are advanced."""


class ApiSection(Section, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network of this machine."""
    port: Port = 8080
    """TCP port; 0 lets the system choose."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may call from a browser, such as ["https://example.com"]; ["*"] for any page."""
    body_limit_bytes: Count = DEFAULT_LIMITS.body_bytes
    """The largest request body (bytes), at most half of `bodies_limit_bytes`; a larger one is answered with 413."""
    bodies_limit_bytes: Count = 1 << 29
    """The most bytes of all request bodies in progress; one client may use as much as is free (bytes)."""
    rows_limit: Count = DEFAULT_LIMITS.rows
    """The most rows in one request."""
    keep_alive_s: Seconds = 75.0
    """How long an idle connection stays open (seconds); longer than the clients' own, so that they close first."""
    drain_s: Seconds = 10.0
    """How long requests in flight may take after SIGTERM (seconds)."""
    plain_http: bool = False
    """Serve beyond loopback without TLS: on a protected network, or behind a proxy that terminates TLS."""
    open_metrics: bool = False
    """Serve /metrics to everybody; otherwise any valid API key reads them."""


class GrpcSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """Also answer V2 over gRPC, on `api.host`, with TLS if `tls.enabled` is true."""
    port: Port = 8081
    """TCP port; 0 lets the system choose."""
    client_certificates: bool = False
    """Require a device certificate of every client and authenticate the client by it; false requests none."""
    calls_limit: Count = 4096
    """The most calls at the same moment; one more is refused. One client may have half."""


class TlsSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """Serve HTTPS instead of HTTP."""
    hosts: tuple[str, ...] = ()
    """Names and addresses of this gateway, for the certificate that its own authority issues: ["gateway.example.com",
    "192.0.2.7"]."""
    certificate_file: FilePath = ""
    """A certificate of another authority instead (PEM, with its chain); it may be replaced at any time."""
    key_file: FilePath = ""
    """The key of that certificate."""
    ca_file: FilePath = ""
    """CA certificate of its issuer, or of a proxy's (PEM); devices trust it when they enrol."""


class AuthSection(Section, frozen=True, kw_only=True):
    mode: Literal["tokens", "off"] = "tokens"
    """"off" serves every caller, and is refused unless `api.host` is a loopback address."""
    refresh_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    """Time until a revocation takes effect everywhere, also on open connections (seconds)."""
    proxy_certificate_header: str = ""
    """Header with the client's certificate from a trusted proxy (percent-encoded PEM or RFC 9440); "" disables
    it."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of trusted proxies; each must replace that header on every request."""


class IdentitySection(Section, frozen=True, kw_only=True):
    directory: FilePath = "identity"
    """The certificate authority's key and certificates; created when first needed. Replicas share a copy."""
    certificate_days: Annotated[float, Meta(gt=0, le=825)] = 90.0
    """How long a device's certificate is valid; the device renews it after two thirds."""
    renew_grace_days: Annotated[float, Meta(ge=0, le=825)] = 90.0
    """How long an expired certificate can still be renewed, for devices that were switched off."""
    attempts_per_minute: Count = 60
    """Failed enrolments from one address per minute; further ones have to wait."""
    broker_host: str = ""
    """Address of the MQTT broker for devices, sent to them at enrolment; "" disables MQTT."""
    broker_port: Port = 0
    """The broker's port for them; 0 is `broker.port`."""


class ModelsSection(Section, frozen=True, kw_only=True):
    directory: FilePath = "models"
    """Each subfolder, or subfolder/version, that holds a manifest.json is a bundle; every version is served."""
    wait: bool = True
    """Load before listening; false listens at once, and requests wait for their model."""
    memory_budget_mb: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    """Memory for models (MiB), of all local executors; the least recently used are unloaded. 0 for no limit. See
    docs/how-to/run-both-tiers.md."""
    concurrency: Annotated[int, Meta(ge=0)] = 0
    """Concurrent batches of one model; limits a slow model. 0 is `execution.sessions`."""
    concurrency_of: dict[str, Count] = field(default_factory=dict)
    """`concurrency` of single models, by name: { large = 1 }."""
    executors_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The `executors` that a model may run on, by its name: { large = ["gpu", "far"] }; other models run on all."""


class ExecutionSection(Section, frozen=True, kw_only=True):
    engine: Literal["local", "oip", "ray"] = "local"
    """Engine of the full models: "local" is ONNX Runtime in this process, "oip" the servers of `oip.endpoints`, "ray"
    the cluster of `ray.address`."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """ONNX Runtime execution providers in order of preference; one that is absent is an error."""
    sessions: Annotated[int, Meta(ge=0)] = 0
    """Concurrent batches, each on one thread; 0 means one per core."""
    max_batch_rows: Count = 64
    """The most rows in one batch; fewer for a model that larger batches do not speed up."""
    queue_requests: Count = 1024
    """The most requests that wait for one model; more are refused with a retry time."""
    queue_bytes: Count = 1 << 30
    """The most bytes of tensors that wait, all models together."""
    queue_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """The longest wait of a request without a deadline (seconds); others wait until their deadline."""


class ExecutorSection(Section, frozen=True, kw_only=True):
    engine: Literal["local", "oip", "ray"] = "local"
    """As `execution.engine`; `[oip]` and `[ray]` give the other settings."""
    providers: tuple[str, ...] = ()
    """ONNX Runtime execution providers of "local"; empty means `execution.providers`."""
    endpoints: tuple[str, ...] = ()
    """Server URLs of "oip"; empty means `oip.endpoints`."""
    sessions: Annotated[int, Meta(ge=0)] = 0
    """Concurrent batches; 0 means one per core for "local", and no limit for other engines."""
    profiles: tuple[FilePath, ...] = ()
    """Files of profiles measured on that machine: batch times before the first batch."""


class DecodingSection(DecodingBounds, frozen=True, kw_only=True):
    total_memory_bytes: Count = 1 << 30
    """Working memory of all large inputs under way; one client may hold half, others wait for it (bytes)."""


class CacheSection(Section, frozen=True, kw_only=True):
    limit_bytes: Annotated[int, Meta(ge=0)] = 0
    """Size of the cache of answers for the same caller and input (bytes); 0 disables it."""


class OipSection(Section, frozen=True, kw_only=True):
    endpoints: tuple[str, ...] = ()
    """URLs of servers that have the same models and speak the Open Inference Protocol V2 with binary tensors:
    ["https://gpu-1.example.com:8000"]."""
    processing: Literal["there", "here"] = "there"
    """"there" sends raw inputs to Firstline gateways; "here" sends preprocessed inputs to any V2 server."""
    token_file: FilePath = ""
    """A file that holds the bearer token for them, and nothing else; "" sends none."""
    ca_file: FilePath = ""
    """CA certificate of their certificates (PEM); "" uses the system's authorities."""
    in_flight: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Concurrent batches per endpoint: enough to keep its cores busy, and some in transit."""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Timeout of a batch at one endpoint (seconds); then another endpoint is tried."""
    hedge_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of all batches that may also be sent to a second endpoint if the first is slow; 0 disables hedging."""


class RaySection(Section, frozen=True, kw_only=True):
    address: str = "auto"
    """The cluster's head, HOST:PORT; "auto" is the cluster that this machine is a node of."""
    models_directory: str = ""
    """Path of the bundles of `models.directory` on the cluster's machines; "" is the same path."""
    replicas_min: Count = 1
    """Minimum replicas of each full model; from 2 on, the loss of one machine causes no outage."""
    replicas_max: Count = 8
    """Maximum replicas of each full model; Ray adds them under load."""
    replica_cores: Count = 1
    """Cores of a replica, and its concurrent batches."""
    replica_gpus: Annotated[float, Meta(ge=0)] = 0.0
    """GPUs of a replica, also fractions; `execution.providers` then names the GPU's provider."""
    in_flight: Annotated[int, Meta(ge=1, le=64)] = 2
    """Concurrent batches per core of a replica: one that runs, and some in transit."""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Timeout of a batch at a replica (seconds); then another replica is tried."""


class MqttSection(Section, frozen=True, kw_only=True):
    enabled: bool = False
    """Also take requests from devices over MQTT 5."""
    host: str = "127.0.0.1"
    """Host name or address of the broker."""
    port: Port = 1883
    """The broker's port; with `broker.directory` the default is `broker.gateway_port`."""
    username: str = ""
    """This gateway's user name at the broker; "" connects without one."""
    password_file: FilePath = ""
    """A file that holds the password, and nothing else."""
    tls_ca_file: AuthoritiesPath = ""
    """Certificate authority of a broker that speaks TLS, or "system" for the machine's own; "" connects without TLS."""
    prefix: str = "firstline/v1"
    """First levels of every topic."""
    group: str = "gateway"
    """Shared subscription; gateways with the same group share the load."""
    concurrency: Annotated[int, Meta(ge=1, le=65535)] = 64
    """The most unanswered requests that the broker sends."""


class StoreSection(Section, frozen=True, kw_only=True):
    url: str = "sqlite:///gateway.db"
    """The database: `sqlite:///FILE`, or `postgresql+psycopg://USER@HOST/DATABASE`, which replicas share."""
    password_file: FilePath = ""
    """A file that holds PostgreSQL's password, and nothing else."""
    deliveries_limit: Count = 1_000_000
    """The most answered deliveries that are remembered; a new one replaces the oldest."""
    deliveries_age_s: Annotated[float, Meta(gt=0)] = 7 * 86_400.0
    """How long an answered delivery is remembered (seconds of service); longer than the devices' outbox.max_age_s."""


class JobsSection(Section, frozen=True, kw_only=True):
    in_flight: Count = 16
    """The most jobs that this gateway runs concurrently, at a lower priority than interactive requests."""
    limit: Count = 100_000
    """The most stored jobs, answered ones included; one client may use as much as is free."""
    bytes_limit: Count = 1 << 30
    """The most bytes of inputs and answers of stored jobs; one client may use as much as is free."""
    waiting_limit: Count = 1024
    """The most callers that may wait for answers to jobs, by `Prefer: wait` or an event stream; one client may have
    half."""
    age_s: Annotated[float, Meta(gt=0)] = 86_400.0
    """Time for which the answer to a job is stored, and the longest wait of a job for capacity (seconds of service)."""


class FleetSection(Section, frozen=True, kw_only=True):
    accept: Literal["automatic", "by_hand"] = "automatic"
    """Whether an enrolled device joins the fleet at once, or after `firstline device accept`."""
    mqtt: bool = True
    """With `mqtt.enabled`, also read reports and publish desired documents over MQTT."""
    metrics_tag: Annotated[str, Meta(max_length=63)] = ""
    """Tag whose values group the devices in `firstline_gateway_fleet_devices`, such as "site"; "" for none."""


# The gateways' user at a broker whose files this gateway writes, and two of those files.
BROKER_USER = "_gateway"
BROKER_PASSWORD_FILE = "gateway_password"  # noqa: S105 (a file's name)
BROKER_AUTHORITIES_FILE = "ca.pem"


class BrokerSection(Section, frozen=True, kw_only=True):
    directory: FilePath = ""
    """Folder of Mosquitto's files, which this gateway writes and updates; "" if you configure the broker yourself."""
    seen_as: str = ""
    """Path of that folder inside the broker's container; "" is the same path."""
    data_directory: str = ""
    """Folder for sessions and retained messages, as the broker sees it; "" is `data` in its folder."""
    hosts: tuple[str, ...] = ()
    """Names and addresses of the broker; empty means `identity.broker_host` and `mqtt.host`."""
    port: Port = 8883
    """TLS port for devices with their certificates."""
    gateway_port: Port = 8884
    """TLS port for gateways with their password; the default of `mqtt.port`."""
    connections: Count = 10_000
    """The most concurrent device connections."""
    memory_limit_bytes: Count = 1 << 30
    """The most memory of the broker for messages and sessions (bytes), several times `api.body_limit_bytes`. The broker
    ends the connection of a client whose message needs more."""
    pid_file: FilePath = ""
    """File with the broker's process id, for a SIGHUP after revocations; "" if the broker watches its files."""

    @property
    def folder(self) -> Path:
        """The folder as this gateway sees it."""
        return Path(self.directory)

    @property
    def seen_folder(self) -> PurePosixPath:
        """The folder as the broker sees it."""
        return PurePosixPath(self.seen_as or self.folder.resolve())

    @property
    def data_folder(self) -> PurePosixPath:
        """The folder for sessions and retained messages, as the broker sees it."""
        return PurePosixPath(self.data_directory) if self.data_directory else self.seen_folder / "data"


class RegistrySection(Section, frozen=True, kw_only=True):
    blobs: Annotated[str, Meta(extra={"path": ("s3:",)})] = ""
    """Storage of the bundle files that devices fetch: a folder, or s3://BUCKET/PREFIX; "" disables the
    registry."""
    s3_endpoint: str = ""
    """The URL of an S3-compatible store; "" is AWS's own. Credentials: AWS's variables, or the role."""
    s3_region: str = ""
    """The store's region; "" uses the AWS environment variables."""
    blob_limit_bytes: Count = 1 << 32
    """The largest file (bytes)."""
    limit_bytes: Count = 1 << 38
    """Total size of all files (bytes); uploads beyond it are refused."""
    full_models: FilePath = ""
    """Folder for full models that the gateway fetches from the registry while the fleet runs their bundles;
    "" serves only the bundles in models.directory."""
    retire_after_s: Annotated[float, Meta(ge=0, le=365 * 86_400)] = 7 * 86_400.0
    """Time until an unused fetched model is removed (seconds); devices silent for longer do not count."""


class ContractsSection(Section, frozen=True, kw_only=True):
    delta: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """The probability with which a contract that holds may ever alarm."""
    escalations_per_hour: Annotated[float, Meta(ge=1, le=1e12)] = 36_000.0
    """Capacity for escalations when contracts alarm (rows); shared by the devices of the last hour."""
    audits_per_device_hour: Count = 120
    """The most audits of one device that count in an hour; more are answered and not counted."""
    audit_spacing_s: Seconds = 0.0
    """Minimum time between counted audits of one promise (seconds), for devices that see the same scene.
    Requests may name their scene with `source`; then it is the time between those of one source."""


class WebhookSection(Section, frozen=True, kw_only=True):
    url: str = ""
    """https:// address that receives the messages; http:// only on this machine."""
    events: tuple[Literal["alarms", "rollouts", "enrolments", "answers"], ...] = ("alarms", "rollouts", "enrolments")
    """Events that it receives. With "answers", devices also report each promised correction that has ended."""
    secret_file: FilePath = ""
    """A file that holds the signing key, "whsec_" and base64, and nothing else."""


class Settings(Section, frozen=True, kw_only=True):
    api: ApiSection = ApiSection()
    grpc: GrpcSection = GrpcSection()
    tls: TlsSection = TlsSection()
    auth: AuthSection = AuthSection()
    identity: IdentitySection = IdentitySection()
    models: ModelsSection = ModelsSection()
    execution: ExecutionSection = ExecutionSection()
    executors: dict[Name, ExecutorSection] = field(default_factory=dict)
    """Several executors by name, instead of `execution.engine`; each batch goes to the one that is expected to finish
    it first. See docs/how-to/scale.md."""
    decoding: DecodingSection = DecodingSection()
    cache: CacheSection = CacheSection()
    oip: OipSection = OipSection()
    ray: RaySection = RaySection()
    mqtt: MqttSection = MqttSection()
    broker: BrokerSection = BrokerSection()
    registry: RegistrySection = RegistrySection()
    store: StoreSection = StoreSection()
    jobs: JobsSection = JobsSection()
    fleet: FleetSection = FleetSection()
    contracts: ContractsSection = ContractsSection()
    webhooks: dict[Name, WebhookSection] = field(default_factory=dict)
    """Receivers of signed messages about events, by name. See docs/how-to/webhooks.md."""
    tracing: Tracing = Tracing()
    log: Log = Log()

    @property
    def limits(self) -> Limits:
        """The limits on one message."""
        body_bytes = self.api.body_limit_bytes
        return Limits(
            body_bytes=body_bytes, json_bytes=min(DEFAULT_LIMITS.json_bytes, body_bytes), rows=self.api.rows_limit
        )

    @property
    def fetched_models(self) -> Path | None:
        """Folder for fetched full models; None if they are not fetched."""
        return Path(self.registry.full_models) if self.registry.full_models else None

    @property
    def loads_here(self) -> bool:
        """Whether full models run, and are loaded, in this process."""
        return any(each.engine == "local" for each in self.engines.values())

    def copies_of(self, model: str) -> int:
        """Returns how many times this process loads a model: once for each local executor that it may run on."""
        names = self.models.executors_of.get(model, tuple(self.engines))
        return sum(found.engine == "local" for name, found in self.engines.items() if name in names)

    @property
    def engines(self) -> dict[str, ExecutorSection]:
        """The executors that run models; an unnamed executor is named after its engine."""
        return self.executors or {self.execution.engine: ExecutorSection(engine=self.execution.engine)}

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers of the first engine in this process, which load the models."""
        here = (each.providers for each in self.engines.values() if each.engine == "local")
        return next(here, ()) or self.execution.providers

    @property
    def sessions(self) -> int:
        """Concurrent batches; without a number of them, the cores that the cpuset and the CPU quota leave."""
        from firstline_core.hardware.kernel_files import Tree, usable_cores  # which most commands do not need

        return self.execution.sessions or max(1, math.ceil(usable_cores(Tree())[0]))
