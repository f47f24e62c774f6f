"""The settings of the gateway. Every field has a default; `gateway.toml` shows them all, `load.py` reads it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.types import Name


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the cores that this process may use; the cpuset and the CPU quota of a container limit them.

    Args:
        cgroup: where a container sees its own control group (version 2).
    """
    cores = len(os.sched_getaffinity(0))
    try:
        # "QUOTA PERIOD", in microseconds, or "max PERIOD": docs.kernel.org/admin-guide/cgroup-v2.html
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
    except (OSError, ValueError):
        return cores
    return max(1, min(cores, math.ceil(quota / period))) if period else cores


@dataclass(frozen=True)
class PathMark:
    """Marks settings that are paths; `no_path` is a pattern of values that are none."""

    no_path: str = ""


FilePath = Annotated[str, PathMark()]
Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]


class Api(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network of this machine."""
    port: Port = 8080
    """TCP port; 0 lets the system choose."""
    body_limit_bytes: Count = DEFAULT_LIMITS.body_bytes
    """The largest request body (bytes)."""
    bodies_limit_bytes: Count = 1 << 29
    """The most bytes of bodies of all requests under way; one client's may take as much as is left free (bytes)."""
    rows_limit: Count = DEFAULT_LIMITS.rows
    """The most rows in one request."""
    keep_alive_s: Seconds = 75.0
    """How long an idle connection stays open (seconds); longer than the clients' own, so that they close first."""
    drain_s: Seconds = 10.0
    """How long requests in flight may take after SIGTERM (seconds)."""
    plain_http: bool = False
    """Serve beyond loopback without TLS: for networks that are protected otherwise, or behind a proxy that ends TLS."""
    open_metrics: bool = False
    """Serve /metrics to everybody; otherwise any valid API key reads them."""


class Grpc(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Also answer V2 over gRPC, on `api.host`, with TLS where `tls.enabled` says so."""
    port: Port = 8081
    """TCP port; 0 lets the system choose."""
    client_certificates: bool = False
    """Demand a device's certificate of every client, and take it for its key; otherwise none is asked for."""
    calls_limit: Count = 4096
    """The most calls at the same moment; one more is refused."""


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Serve HTTPS instead of HTTP."""
    hosts: tuple[str, ...] = ()
    """Names and addresses that devices and applications reach this gateway by; its own authority vouches for them."""
    certificate_file: FilePath = ""
    """Another authority's certificate for the gateway (PEM, with its chain) instead; it may be exchanged any time."""
    key_file: FilePath = ""
    """The key of that certificate."""
    ca_file: FilePath = ""
    """Who vouches for that certificate, or for a proxy's (PEM): what devices believe when they enrol."""


class Auth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["tokens", "off"] = "tokens"
    """"off" serves whoever connects, and is refused unless `api.host` is a loopback address."""
    refresh_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    """How soon a revocation holds everywhere, open connections included (seconds)."""
    proxy_certificate_header: str = ""
    """In which header a trusted proxy names the client's certificate (percent-encoded PEM, or RFC 9440); "" is none."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of the proxies that are believed; each must replace that header on every request."""


class Identity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    directory: FilePath = "identity"
    """The certificate authority's key and what it made; replicas share a copy. Made when it is first needed."""
    certificate_days: Annotated[float, Meta(gt=0, le=825)] = 90.0
    """How long a device's certificate is valid; the device renews it after two thirds."""
    renew_grace_days: Annotated[float, Meta(ge=0, le=825)] = 90.0
    """How long after its end it can still be renewed, and only that: for devices that were switched off."""
    attempts_per_minute: Count = 60
    """How many enrolments of one address may fail in a minute; more have to wait."""
    broker_host: str = ""
    """Where devices reach the MQTT broker, which enrolment tells them; "" leaves MQTT out."""
    broker_port: Port = 0
    """The broker's port for them; 0 is `broker.port`."""


class Models(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    directory: FilePath = "models"
    """Each subfolder, or subfolder/version, that holds a manifest.json is a bundle; every version is served."""
    wait: bool = True
    """Load before listening; false listens at once, is ready later, and has requests wait for their model."""
    memory_budget_mb: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    """What the models in memory may take (MiB); of more, those used last stay. 0 is no limit. See docs/operating.md."""
    concurrency: Annotated[int, Meta(ge=0)] = 0
    """Batches of one model that run at the same moment, so that a slow one leaves room; 0 is `execution.sessions`."""
    concurrency_of: dict[str, Count] = field(default_factory=dict)
    """The same for single models, by name."""
    executors_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of `executors`, those that a model may run on, by its name; a model that is not named runs on all."""


class Execution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine: Literal["local", "oip", "ray"] = "local"
    """What runs the full models: "local" is ONNX Runtime in this process, "oip" the servers of `oip.endpoints`, "ray"
    the cluster of `ray.address`."""
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """ONNX Runtime execution providers in order of preference; one that is absent is an error."""
    sessions: Annotated[int, Meta(ge=0)] = 0
    """Batches that run at the same moment, each on one thread; 0 means one for each core."""
    max_batch_rows: Count = 64
    """The most rows that run as one batch; of a model that gains nothing by more, fewer do."""
    queue_requests: Count = 1024
    """The most requests that wait for one model; more are refused with a time to come back."""
    queue_bytes: Count = 1 << 30
    """The most bytes of tensors that wait, all models together."""
    queue_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """The longest that a request without a deadline may have to wait (seconds); one with a deadline: until that."""


class ExecutorOf(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine: Literal["local", "oip", "ray"] = "local"
    """As `execution.engine`; beside what stands here, `[oip]` and `[ray]` hold."""
    providers: tuple[str, ...] = ()
    """Of "local": ONNX Runtime execution providers; none named is `execution.providers`."""
    endpoints: tuple[str, ...] = ()
    """Of "oip": URLs of servers; none named is `oip.endpoints`."""
    sessions: Annotated[int, Meta(ge=0)] = 0
    """Batches that run side by side there; 0: of "local" one for each core, elsewhere as many as it is given."""
    memory_budget_mb: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    """What models and batches under way may take there (MiB); a model beyond it runs elsewhere. 0 is no limit."""
    profiles: Annotated[tuple[str, ...], PathMark()] = ()
    """Files of profiles that were made on that machine: what batches take there before any ran, and their energy."""
    power_w: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Stated: what a batch draws there while it runs (watts); where a profile has its energy, that holds."""
    energy_budget_w: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """What batches may draw there, as an average over a minute (watts); more goes elsewhere. 0 is no limit."""


class Cache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit_bytes: Annotated[int, Meta(ge=0)] = 0
    """Answers that are kept, to be given again to the same caller for the same input (bytes); 0 keeps none."""


class Oip(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoints: tuple[str, ...] = ()
    """URLs of servers that have the same models and speak the Open Inference Protocol V2 with binary tensors."""
    processing: Literal["there", "here"] = "there"
    """"there" sends inputs as they came, to Firstline gateways; "here" sends what the model takes, to any V2 server."""
    token_file: FilePath = ""
    """A file that holds the bearer token for them, and nothing else; "" sends none."""
    ca_file: FilePath = ""
    """Who vouches for their certificates (PEM); "" for the usual authorities."""
    in_flight: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Batches at the same moment for each endpoint; as many as keep its cores busy, and some on the way."""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """The longest that one endpoint may take for a batch (seconds); then another one is asked."""
    hedge_share: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Of all batches, the share that may be sent to a second endpoint because the first one is slow; 0 is never."""


class Ray(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = "auto"
    """The cluster's head, HOST:PORT; "auto" is the cluster that this machine is a node of."""
    models_directory: str = ""
    """Where its machines have the bundles of `models.directory`; "" is the same path."""
    replicas_min: Count = 1
    """Replicas of each full model that always run; from 2 on, one lost machine is not noticed."""
    replicas_max: Count = 8
    """Replicas of each full model that run at the most; Ray adds them under load."""
    replica_cores: Count = 1
    """Cores that a replica takes, and batches that it runs side by side."""
    replica_gpus: Annotated[float, Meta(ge=0)] = 0.0
    """GPUs that a replica takes, parts of one included; `execution.providers` then names theirs."""
    in_flight: Annotated[int, Meta(ge=1, le=64)] = 2
    """Batches at the same moment for each core of a replica: one that runs, and some on the way."""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """The longest that a replica may take for a batch (seconds); then another one is asked."""


class Mqtt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Also take requests from devices over MQTT 5."""
    host: str = "127.0.0.1"
    """The broker."""
    port: Port = 1883
    """The broker's port."""
    username: str = ""
    """Whom the broker knows this gateway as; "" connects without."""
    password_file: FilePath = ""
    """A file that holds the password, and nothing else."""
    tls_ca_file: Annotated[str, PathMark("system")] = ""
    """Certificate authority of a broker that speaks TLS, or "system" for the machine's own; "" connects without TLS."""
    prefix: str = "firstline/v1"
    """First levels of every topic."""
    group: str = "gateway"
    """Shared subscription; gateways with the same group share the load."""
    concurrency: Annotated[int, Meta(ge=1, le=65535)] = 64
    """The most requests that the broker hands over before it has seen an answer."""


class Store(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str = "sqlite:///gateway.db"
    """What is kept, and where: `sqlite:///FILE`, or `postgresql+psycopg://USER@HOST/DATABASE`, which replicas share."""
    password_file: FilePath = ""
    """A file that holds PostgreSQL's password, and nothing else."""
    deliveries_limit: Count = 1_000_000
    """The most answered deliveries that are remembered; a new one takes the oldest one's place."""
    deliveries_age_s: Annotated[float, Meta(gt=0)] = 7 * 86_400.0
    """How long an answered delivery is remembered (seconds of service); longer than the devices' outbox.max_age_s."""


class Jobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    in_flight: Count = 16
    """The most jobs that this gateway runs at the same moment, below all requests that somebody waits for."""
    limit: Count = 100_000
    """The most jobs that are kept, their answers included; one client's may take as much as is left free."""
    bytes_limit: Count = 1 << 30
    """The most bytes of inputs and answers of jobs that are kept (bytes); likewise."""
    waiting_limit: Count = 1024
    """The most callers that may wait for answers to jobs, by `Prefer: wait` or an event stream."""
    age_s: Annotated[float, Meta(gt=0)] = 86_400.0
    """How long the answer to a job is kept, and how long a job that there is no room for may wait (seconds of
    service)."""


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    accept: Literal["automatic", "by_hand"] = "automatic"
    """Whether a device that may connect belongs to the fleet at once, or after `firstline device accept`."""
    mqtt: bool = True
    """Where `mqtt.enabled` is, also follow devices there, and tell them what to run."""
    profile_requests_age_s: Annotated[float, Meta(gt=0, le=365 * 86_400)] = 7 * 86_400.0
    """How long a device is asked for a profile (seconds); what it has not brought by then, it brings no more."""


# The gateways' user at a broker whose files this gateway writes, and two of those files.
BROKER_USER = "_gateway"
BROKER_PASSWORD_FILE = "gateway_password"  # noqa: S105 (a file's name)
BROKER_AUTHORITIES_FILE = "ca.pem"


class Broker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    directory: FilePath = ""
    """Folder of the files of a Mosquitto, which this gateway writes and keeps up to date; "" leaves it to you."""
    seen_as: str = ""
    """The same folder as the broker sees it, where that is a container; "" is the same path."""
    data_directory: str = ""
    """Where it keeps sessions and retained facts, as the broker sees it; "" is `data` in its folder."""
    hosts: tuple[str, ...] = ()
    """Names and addresses that it is reached by; "" for `identity.broker_host` and `mqtt.host`."""
    port: Port = 8883
    """TLS, for devices with their certificates."""
    gateway_port: Port = 8884
    """TLS, for gateways with their password; `mqtt.port` where that says nothing else."""
    connections: Count = 10_000
    """The most devices at once."""
    pid_file: FilePath = ""
    """Where it notes its process id, so that it can be told of revocations; "" where it watches its files itself."""

    @property
    def folder(self) -> Path:
        """The folder as this gateway sees it."""
        return Path(self.directory)


class Registry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    blobs: Annotated[str, PathMark("s3://.*")] = ""
    """Where the files of bundles are kept that devices fetch: a folder, or s3://BUCKET/PREFIX; "" is no registry."""
    s3_endpoint: str = ""
    """The URL of an S3-compatible store; "" is AWS's own. Credentials: AWS's variables, or the role."""
    s3_region: str = ""
    """The store's region; "" is what AWS's variables say."""
    blob_limit_bytes: Count = 1 << 32
    """The largest file (bytes)."""
    limit_bytes: Count = 1 << 38
    """All files together (bytes); what comes beyond it is refused."""
    full_models: FilePath = ""
    """A folder that full models are fetched to from the registry, and served from, for as long as the fleet runs their
    bundles; "" serves what lies in models.directory alone."""
    retire_after_s: Annotated[float, Meta(ge=0, le=365 * 86_400)] = 7 * 86_400.0
    """How long no device has needed such a model before it goes (seconds); one silent for as long needs none."""


class Contracts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delta: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """The probability with which a contract that holds may ever alarm."""
    escalations_per_hour: Annotated[float, Meta(ge=1, le=1e12)] = 36_000.0
    """What this gateway has room for when contracts alarm (rows); shared by the devices of the last hour."""
    audits_per_device_hour: Count = 120
    """The most audits of one device that count in an hour; more are answered and not counted."""
    audit_spacing_s: Seconds = 0.0
    """Audits of one promise count at least this far apart (seconds): for devices that look at one scene."""


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """At "info" each request is one line."""
    format: Literal["text", "json"] = "text"
    """"text" for people, "json" for collectors; to stderr."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api: Api = Api()
    grpc: Grpc = Grpc()
    tls: Tls = Tls()
    auth: Auth = Auth()
    identity: Identity = Identity()
    models: Models = Models()
    execution: Execution = Execution()
    executors: dict[Name, ExecutorOf] = field(default_factory=dict)
    """Several, by names of your own, in place of `execution.engine`: each batch goes to the one that is expected to be
    done with it first."""
    cache: Cache = Cache()
    oip: Oip = Oip()
    ray: Ray = Ray()
    mqtt: Mqtt = Mqtt()
    broker: Broker = Broker()
    registry: Registry = Registry()
    store: Store = Store()
    jobs: Jobs = Jobs()
    fleet: Fleet = Fleet()
    contracts: Contracts = Contracts()
    log: Log = Log()

    @property
    def limits(self) -> Limits:
        """The limits on one message."""
        body_bytes = self.api.body_limit_bytes
        return Limits(
            body_bytes=body_bytes,
            json_bytes=min(DEFAULT_LIMITS.json_bytes, body_bytes),
            rows=self.api.rows_limit,
        )

    @property
    def fetched_models(self) -> Path | None:
        """Where full models are fetched to; None where none are."""
        return Path(self.registry.full_models) if self.registry.full_models else None

    @property
    def loads_here(self) -> bool:
        """Whether full models run, and are loaded, in this process."""
        return any(each.engine == "local" for each in self.engines.values())

    @property
    def engines(self) -> dict[str, ExecutorOf]:
        """The executors that run models; without a name, an executor is called like its engine."""
        return self.executors or {self.execution.engine: ExecutorOf(engine=self.execution.engine)}

    @property
    def providers(self) -> tuple[str, ...]:
        """Of the first engine in this process: models are loaded with these."""
        here = (each.providers for each in self.engines.values() if each.engine == "local")
        return next(here, ()) or self.execution.providers

    @property
    def sessions(self) -> int:
        """Batches that run at the same moment."""
        return self.execution.sessions or usable_cores()
