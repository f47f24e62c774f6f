"""What one thing costs: processor time and memory of the real processes, each asked over real connections.

Processor time, not time on the clock: it hardly changes when the machine has other work. Of some repetitions the least
counts. The gateway's model is a product of 16 by 4, so that what is left is the gateway.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from figures import measured
from load.models import quick_bundle
from serving import models
from serving.asking import session
from support.broker import Broker
from support.databases import PostgreSql
from support.keys import create_key
from support.mqtt_device import MqttDevice, device_at

from firstline.demo.processes import tier
from firstline_core.protocol.mqtt import Publication
from firstline_gateway.settings.settings import Store
from firstline_gateway.store.database import open_database
from scaling import loads
from scaling.fleet import Units

_MODEL = "quick"
_REQUESTS = 3000
_WARM = 500
_REPEATS = 3
_AT_ONCE = 16
_DELIVERIES_AT_ONCE = 64
_DEVICES = 8
_HANDSHAKES = 150
_COMMITS = 300
_PINGS = 5


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's process."""

    pid: int
    port: int
    token: str
    folder: Path


@asynccontextmanager
async def gateway(folder: Path, store: Store, sections: str = "") -> AsyncIterator[Gateway]:
    """Serves the quick model."""
    folder.mkdir()  # noqa: ASYNC240 (nothing else runs)
    quick_bundle(folder / "models" / _MODEL)
    database = open_database(store)
    database.close()
    token = create_key(store, f"device-{folder.name}", "device")
    config = folder / "gateway.toml"
    config.write_text(
        f'[models]\ndirectory = "models"\n[store]\nurl = "{store.url}"\n[log]\nlevel = "warning"\n[api]\nport = 0\n'
        + sections
    )
    async with tier("firstline_gateway", config, folder / "log") as running:
        yield Gateway(running.process.pid, int(running.url.rpartition(":")[2]), token, folder)


async def measure(folder: Path, connections: int) -> Units:
    """All of it, in about two minutes.

    Args:
        folder: empty.
        connections: to one broker.
    """
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(PostgreSql("fsync=on", "full_page_writes=on", "synchronous_commit=on"))
        broker = stack.enter_context(Broker(folder / "broker"))
        shared = Store(url=postgres.new_database())
        mqtt = f'[mqtt]\nenabled = true\nhost = "{broker.host}"\nport = {broker.port}\n'
        on_postgres = await stack.enter_async_context(gateway(folder / "postgres", shared, mqtt))
        memory_bytes = loads.resident_bytes(on_postgres.pid)
        tell("over HTTP")
        http_us = await _least(lambda: _over_http(on_postgres))
        tell("over MQTT")
        gateway_mqtt_us, broker_us = await _over_mqtt(on_postgres, broker)
        tell("deliveries")
        delivery_us, postgres_us, a_commit, kept_bytes = await _deliveries(on_postgres, postgres, shared)
        commits = await asyncio.to_thread(_commits, postgres)
    tell("handshakes")
    secured = Store(url=f"sqlite:///{folder / 'tls.db'}")
    async with gateway(folder / "tls", secured, '[tls]\nenabled = true\nhosts = ["127.0.0.1"]\n') as one:
        handshake_us = await _least(lambda: _handshakes(one))
    tell(f"{connections} connections")
    connect_us, connection_bytes, ping_us = await _connections(folder, connections)
    return Units(
        model_ms=_model_ms(folder),
        gateway_http_us=http_us,
        gateway_mqtt_us=gateway_mqtt_us,
        gateway_delivery_us=delivery_us,
        broker_request_us=broker_us,
        broker_ping_us=ping_us,
        broker_connect_us=connect_us,
        broker_connection_bytes=connection_bytes,
        handshake_us=handshake_us,
        postgres_delivery_us=postgres_us,
        postgres_commits=commits,
        deliveries_commit=a_commit,
        delivery_bytes=kept_bytes,
        gateway_bytes=float(memory_bytes),
        idle_day_bytes=_idle_day_bytes(),
    )


def tell(what: str) -> None:
    print(f"measuring: {what}", file=sys.stderr)


async def _least(measure_once: Callable[[], Awaitable[float]]) -> float:
    return min([await measure_once() for _ in range(_REPEATS)])


async def _over_http(one: Gateway) -> float:
    body = loads.http_request(loads.request(_MODEL), one.token)
    await loads.ask_over_http(one.port, lambda: body, _WARM, _AT_ONCE)
    before_s = loads.cpu_s([one.pid])
    await loads.ask_over_http(one.port, lambda: body, _REQUESTS, _AT_ONCE)
    return (loads.cpu_s([one.pid]) - before_s) / _REQUESTS * 1e6


async def _over_mqtt(one: Gateway, broker: Broker) -> tuple[float, float]:
    found: list[tuple[float, float]] = []
    each = _REQUESTS // _DEVICES
    async with AsyncExitStack() as stack:
        asking = [await stack.enter_async_context(device_at(broker, f"mqtt-{number}")) for number in range(_DEVICES)]
        for count in (_WARM // _DEVICES, *[each] * _REPEATS):
            made = [[device.publication(loads.request(_MODEL)) for _ in range(count)] for device in asking]
            before_s = loads.cpu_s([one.pid]), loads.cpu_s([broker.pid])
            async with asyncio.TaskGroup() as group:
                for device, publications in zip(asking, made, strict=True):
                    group.create_task(_ask_all(device, publications))
            spent = (loads.cpu_s([one.pid]) - before_s[0], loads.cpu_s([broker.pid]) - before_s[1])
            found.append((spent[0] / count / _DEVICES * 1e6, spent[1] / count / _DEVICES * 1e6))
    return min(gateway for gateway, _ in found[1:]), min(broker for _, broker in found[1:])


async def _ask_all(device: MqttDevice, publications: list[Publication]) -> None:
    for publication in publications:
        await device.ask(publication)


async def _deliveries(one: Gateway, postgres: PostgreSql, store: Store) -> tuple[float, float, float, float]:
    """Processor time of gateway and PostgreSQL for one, how many share a commit, and what one takes on disk."""
    conninfo = store.url.replace("+psycopg", "")

    def asked(question: str) -> float:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            (value,) = connection.execute(question.encode()).fetchone() or (0,)
            return float(value)

    best_gateway_us = best_postgres_us = float("inf")
    at_first = asked("SELECT pg_total_relation_size('deliveries')")
    flushes = 0.0
    for _ in range(_REPEATS):
        made = [loads.http_request(loads.request(_MODEL, promised=True), one.token) for _ in range(_REQUESTS)]
        turn = itertools.chain(made)
        before = loads.cpu_s([one.pid]), loads.cpu_s(loads.family(postgres.pid)), asked(_FLUSHES)
        await loads.ask_over_http(one.port, turn.__next__, _REQUESTS, _DELIVERIES_AT_ONCE)
        gateway_s, postgres_s = loads.cpu_s([one.pid]) - before[0], loads.cpu_s(loads.family(postgres.pid)) - before[1]
        best_gateway_us = min(best_gateway_us, gateway_s / _REQUESTS * 1e6)
        best_postgres_us = min(best_postgres_us, postgres_s / _REQUESTS * 1e6)
        await asyncio.sleep(1.5)  # after which PostgreSQL has counted
        flushes += asked(_FLUSHES) - before[2]
    size_bytes = asked("SELECT pg_total_relation_size('deliveries')") - at_first
    count = _REPEATS * _REQUESTS
    return best_gateway_us, best_postgres_us, count / max(flushes, 1.0), size_bytes / count


# As often as its log is flushed: whoever commits meanwhile is in the next one.
_FLUSHES = "SELECT wal_sync FROM pg_stat_wal"


def _commits(postgres: PostgreSql) -> float:
    """A second, one connection, one after the other."""
    with psycopg.connect(postgres.conninfo) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS written (content bytea)")
        connection.commit()
        best_s = float("inf")
        for _ in range(_REPEATS):
            began_s = time.perf_counter()
            for _ in range(_COMMITS):
                connection.execute("INSERT INTO written VALUES (%s)", (b"x" * 500,))
                connection.commit()
            best_s = min(best_s, time.perf_counter() - began_s)
    return _COMMITS / best_s


async def _handshakes(one: Gateway) -> float:
    before_s = loads.cpu_s([one.pid])
    await loads.handshakes(one.port, one.folder / "identity" / "authorities.pem", _HANDSHAKES)
    return (loads.cpu_s([one.pid]) - before_s) / _HANDSHAKES * 1e6


async def _connections(folder: Path, count: int) -> tuple[float, float, float]:
    """Of Mosquitto, for a device over TLS: processor time to let it in, memory, processor time of a keep-alive."""
    certificate, key = _certificate(folder)
    settings = (f"certfile {certificate}", f"keyfile {key}")
    context = ssl.create_default_context(cafile=str(certificate))
    with Broker(folder / "broker-tls", settings=settings) as broker:
        before_s, before_bytes = loads.cpu_s([broker.pid]), loads.resident_bytes(broker.pid)
        there = await loads.devices(broker.port, count, context)
        connect_us = (loads.cpu_s([broker.pid]) - before_s) / count * 1e6
        each_bytes = (loads.resident_bytes(broker.pid) - before_bytes) / count
        before_s = loads.cpu_s([broker.pid])
        await loads.ping(there, _PINGS)
        ping_us = (loads.cpu_s([broker.pid]) - before_s) / count / _PINGS * 1e6
        for writer in there:
            writer.transport.abort()
    return connect_us, each_bytes, ping_us


def _certificate(folder: Path) -> tuple[Path, Path]:
    """One of P-256 that vouches for itself."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "broker.pem", folder / "broker.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def _model_ms(folder: Path) -> float:
    """M alone, on one thread."""
    alone, row = session(models.write_onnx(models.M, folder / "m.onnx")), models.rows(models.M)
    times_s = []
    for _ in range(30):
        began_s = time.thread_time()
        alone.run(None, {models.INPUT: row})
        times_s.append(time.thread_time() - began_s)
    return min(times_s) * 1e3


def _idle_day_bytes() -> float:
    """What `make idle` measured."""
    (found,) = [each.value for each in measured("idle") if each.figure == "MQTT: an idle day, with headers"]
    return (found or 0.0) * 1000
