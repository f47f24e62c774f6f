"""A real gateway on a loopback port, and fakes of its inner interfaces."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
from support.broker import Broker
from support.databases import sqlite_store
from support.executor import ExecutorWithoutFiles, single_executor
from support.keys import bearer, create_key
from support.waiting import until

from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, InvalidTensorError
from firstline_core.ids import new_request_id
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.protocol import sockets
from firstline_core.protocol.http_server import ServerLimits
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES, Array, Arrays, InferRequest, ModelKey, Tensor, row_count
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.executors.base import Executor, Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Settings, StoreSection

DIGITS = Path(__file__).parents[2] / "models" / "digits" / "bundle"


def request_of(*values: float, model: str = "m", deadline_s: float | None = None, **fields: object) -> InferRequest:
    """A request of one row for each value."""
    return InferRequest(
        model=model,
        inputs=(Tensor("x", np.array(values, np.float32).reshape(-1, 1)),),
        request_id=new_request_id(),
        deadline_s=deadline_s,
        **fields,
    )


def doubled(inputs: Arrays) -> Arrays:
    return {PROBABILITIES: (only(inputs) * 2).astype(np.float32)}


def only(inputs: Arrays) -> Array:
    """The array of a request's one input."""
    (array,) = inputs.values()
    return array


class GatedExecutor(ExecutorWithoutFiles):
    """Holds every batch until the test lets it go; a row's answer is its double, and a negative row fails alone."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(slots)
        self.batches: list[tuple[ModelKey, list[list[float]]]] = []
        self._gates: list[asyncio.Future[BaseException | None]] = []
        self.most_running = 0
        self.closed = False

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        self.batches.append((key, [only(each)[:, 0].tolist() for each in inputs]))
        gate: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            error = await gate
        finally:
            self.running -= 1
        if error is not None:
            raise error
        return [InvalidTensorError("a negative row") if (only(each) < 0).any() else doubled(each) for each in inputs]

    @property
    def held(self) -> int:
        return len(self._gates)

    def release(self, position: int = 0, error: BaseException | None = None) -> None:
        """Lets one held batch end, or fail."""
        self._gates.pop(position).set_result(error)

    async def close(self, timeout_s: float) -> bool:
        self.closed = True
        return await super().close(timeout_s)


class Doubler:
    """A model that needs no file: prepares what is 0 or more, doubles it, and counts the rows of each run."""

    def __init__(self, fails_above: float = float("inf"), batch_s: Mapping[int, float] | None = None) -> None:
        self.runs: list[int] = []
        self.batch_s = batch_s or {}
        self.batch = None
        self.by_row = False
        self._fails_above = fails_above

    def prepare(self, inputs: Arrays) -> Arrays:
        if (inputs["x"] < 0).any():
            raise InvalidTensorError("Row 0 is negative.")
        return inputs

    def run(self, rows: Arrays) -> Arrays:
        self.runs.append(row_count(rows))
        (values,) = rows.values()
        if (values > self._fails_above).any():
            raise FirstlineError("too large")
        return {PROBABILITIES: (values * 2).astype(np.float32)}


def served_as(key: ModelKey, size_bytes: int = 1, batch: Literal[1] | None = None) -> ServedModel:
    """A model that needs no file."""
    artefact = Artefact("full.onnx", "0" * 64, size_bytes)
    full = Model("full", artefact, "onnx", "fp32", (ModelInput("x"),), batch=batch)
    spec = InputSpec("x", "FP32", (-1, 1))
    task = Classification(("a", "b"))
    manifest = Manifest(name=key.name, version=key.version, task=task, inputs=(spec,), edge=(), full=full)
    return ServedModel(key, Path(), manifest, None, manifest.full_digest)


def pool_of(executor: Executor, *keys: ModelKey, clock: Clock = SYSTEM_CLOCK) -> Dispatcher:
    """The pool of one executor that runs these models."""
    return single_executor(executor, map(served_as, keys), clock=clock)


def gateway_settings(folder: Path, *, broker: Broker | None = None, **overrides: object) -> Settings:
    """Settings for a test: the digits, one session, and a migrated SQLite store.

    Args:
        folder: of the store and the identity.
        broker: that the gateway connects to.
        overrides: dotted keys, with `__` for the dot.
    """
    defaults: dict[str, object] = {
        "models.directory": str(DIGITS.parent),
        "identity.directory": str(folder / "identity"),
        "execution.sessions": 1,
    }
    if broker is not None:
        defaults |= {"mqtt.enabled": True, "mqtt.port": broker.port}
    if "store__url" not in overrides:
        defaults["store.url"] = sqlite_store(folder).url
    return load(None, environ={}, overrides=defaults | {key.replace("__", "."): v for key, v in overrides.items()})


@cache
def digits_repository() -> Repository:
    """The digits, loaded once for all gateways of this process that run no model."""
    return ModelsFolder(DIGITS).load(RuntimeOptions())


def gateway_of(settings: Settings, executor: Executor, repository: Repository | None = None) -> Gateway:
    """A gateway with one executor; it serves the digits unless the test gives a repository."""
    repository = digits_repository() if repository is None else repository
    return Gateway(settings, repository, single_executor(executor, repository))


def gated_gateway(folder: Path, slots: int = 1, **overrides: object) -> tuple[Gateway, GatedExecutor]:
    """A gateway without authentication whose batches end when the test says so."""
    executor = GatedExecutor(slots)
    return gateway_of(gateway_settings(folder, **({"auth__mode": "off"} | overrides)), executor), executor


@asynccontextmanager
async def serving_gateway(
    folder: Path, *, broker: Broker | None = None, **overrides: object
) -> AsyncIterator[tuple[Gateway, str]]:
    """Opens and serves a gateway with `gateway_settings`; yields it with its URL when it takes MQTT requests."""
    gateway = open_gateway(gateway_settings(folder, broker=broker, **overrides))
    async with serving(gateway) as url:
        if broker is not None:
            await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
        yield gateway, url


@asynccontextmanager
async def serving(gateway: Gateway, port: int = 0, limits: ServerLimits | None = None) -> AsyncIterator[str]:
    """Serves on a loopback port, 0 for a free one, as the process does, and yields the URL."""
    bound = sockets.bind("127.0.0.1", port)
    running = gateway.http_server(limits or ServerLimits(idle_s=5))
    await gateway.start()
    await running.start([bound])
    try:
        yield sockets.url_of(bound, tls=gateway.identity.tls is not None)
    finally:
        await running.stop(2)
        await gateway.close()


async def wait_for_gauge(gateway: Gateway, name: str) -> None:
    """Waits until a gauge of the gateway is 1, for example that it is connected to the broker."""
    await until(lambda: gateway.metrics.registry.get_sample_value(name) == 1)


def http_link(store: StoreSection, url: str, name: str, folder: Path) -> dict[str, Any]:
    """The settings of a device's link to the gateway that serves this URL, with the device's key in a file."""
    key = folder / f"{name}.key"
    if not key.exists():
        key.write_text(create_key(store, name, "device"))
    return {"kind": "http", "url": url, "token_file": str(key)}


def mqtt_link(broker: Broker) -> dict[str, Any]:
    """The settings of a device's link to a broker that lets everybody in."""
    return {"kind": "mqtt", "host": broker.host, "port": broker.port}


def client_of(gateway: Gateway, url: str, name: str = "shop", kind: str = "application") -> httpx.AsyncClient:
    """Returns a client with a new key of the gateway that serves this URL.

    Args:
        name: of the device or application.
        kind: "device", "application", or "operator".
    """
    key = create_key(gateway.settings.store, name, kind)
    return httpx.AsyncClient(base_url=url, headers=bearer(key), timeout=20)
