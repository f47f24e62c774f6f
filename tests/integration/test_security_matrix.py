"""Each identity times each route and each topic, as docs/reference/security-matrix.md has them, over real TLS."""

import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio
from support.identities import Device, certificate, csr, invite
from support.keys import bearer
from support.mosquitto import PREFIX, GeneratedBroker, Issuer, Peer
from support.tls_site import TlsSite, tls_site

from firstline_core.protocol.enrolment import parse_join_token
from firstline_core.units import DAY_S
from firstline_gateway.identity import ca, keys
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.principals import Scope
from firstline_gateway.identity.tables import CERTIFICATES

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "security-matrix.md"


def table_after(heading: str) -> tuple[list[str], dict[str, list[str]]]:
    """The names of the columns of the first table below a heading, and each row's cells by its first."""
    _, found, text = DOCUMENT.read_text().partition(f"{heading}\n")
    assert found, f"no {heading}"
    rows = []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
        elif rows:
            break
    (_, *columns), _, *body = rows
    return columns, {name: cells for name, *cells in body}


COLUMNS, ROUTES = table_after("## HTTPS, at the gateway")
MEMBERS, TOPICS = table_after("## MQTT, at the broker")
REFUSED = (401, 403)
REGISTRY = {"sha256": "0" * 64, "alias": "champion"}


@dataclass
class Caller:
    """A caller's credentials."""

    tls: ssl.SSLContext
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class CalledSite:
    """A gateway, and everybody who calls it, each on a connection of its own."""

    site: TlsSite
    callers: dict[str, Caller]
    clients: dict[str, httpx.AsyncClient]

    async def ask(self, who: str, route: str) -> str:
        """Whether it is answered, as the table says it."""
        method, _, template = route.partition(" ")
        names = {"model": "digits", "name": "nobody", "bundle": "digits", "rollout_id": "r", "command": "pause"}
        names |= {"machine": "bench", "webhook": "ops"}
        path = template.format(**names | {"version": "1", "request_id": "r"} | REGISTRY)
        content = b"{}" if method == "POST" else b""
        if path == "/firstline/v1/enroll":
            (token,) = await invite(self.site.operator, "another")
            content = msgspec.json.encode({"secret": parse_join_token(token).secret, "csr": csr(ca.new_key())})
        elif path == "/firstline/v1/identity/renew":
            content = msgspec.json.encode({"csr": csr(ca.new_key())})
        try:
            reply = await self.clients[who].request(method, path, content=content)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return "no"
        assert reply.status_code < 500, reply.text
        if reply.status_code in REFUSED:
            assert method == "HEAD" or set(reply.json()) >= (
                {"detail", "code"} if path.startswith("/fleet/") else {"error", "code"}
            )
            return "no"
        return "yes"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def called_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CalledSite]:
    folder = tmp_path_factory.mktemp("matrix")
    async with tls_site(folder / "site", registry__blobs=str(folder / "registry")) as found:
        authority = found.gateway.identity.folder.open().active

        async def enrolled(name: str) -> Device:
            device = Device(folder / name, found.url, authority.pem, name)
            (token,) = await invite(found.operator, name)
            assert (await device.enrol(token)).is_success
            return device

        def stranger() -> ssl.SSLContext:
            other = ca.create_authority(ca.new_key(), time.time())
            device = Device(folder / "stranger", found.url, authority.pem, "press-7")
            now_s = time.time()
            device.keep(certificate(other, device.key.public_key(), start_s=now_s - DAY_S, end_s=now_s + DAY_S))
            return device.context()

        def expired() -> ssl.SSLContext:
            device = Device(folder / "expired", found.url, authority.pem, "old")
            now_s = time.time()
            pem = certificate(authority, device.key.public_key(), "old", start_s=now_s - 3 * DAY_S, end_s=now_s - DAY_S)
            read = ca.load_certificate(pem.encode())
            with found.gateway.store.database.begin() as on:
                on.execute(
                    CERTIFICATES.insert().values(
                        serial=ca.serial_of(read),
                        device="old",
                        issued_s=now_s - 3 * DAY_S,
                        not_after_s=now_s - DAY_S,
                        retained_until_service_s=DAY_S,
                        changed=next_version(on),
                    )
                )
            device.keep(pem)
            return device.context()

        plain = ssl.create_default_context(cadata=authority.pem)

        def key(scope: Scope, expires_s: float | None = None) -> Caller:
            with found.gateway.store.database.begin() as on:
                name = scope if expires_s is None else "late"
                text = keys.create_key(on, name, (scope,), now_s=time.time(), expires_s=expires_s)
            return Caller(plain, bearer(text))

        revoked = await enrolled("revoked")
        callers = {
            "anonymous": Caller(plain),
            "stranger": Caller(stranger()),
            "device": Caller((await enrolled("press-7")).context()),
            "revoked": Caller(revoked.context()),
            "expired": Caller(expired()),
            "infer": key("infer"),
            "fleet": key("fleet"),
            "admin": key("admin"),
            "late": key("infer", time.time() - 1),
        }
        await found.revoke("revoked")
        async with AsyncExitStack() as opened:
            clients = {}
            for who, caller in callers.items():
                client = httpx.AsyncClient(base_url=found.url, verify=caller.tls, headers=caller.headers)
                clients[who] = await opened.enter_async_context(client)
            yield CalledSite(found, callers, clients)


@pytest.mark.asyncio(loop_scope="module")
async def test_every_route_is_in_the_table(called_site: CalledSite) -> None:
    described = called_site.site.gateway.control_plane().openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert served == set(ROUTES) - {"GET /openapi.json"}
    assert set(COLUMNS) == set(called_site.callers)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("route", ROUTES)
async def test_routes_match_the_table(called_site: CalledSite, route: str) -> None:
    assert [await called_site.ask(who, route) for who in COLUMNS] == ROUTES[route]


@pytest.mark.asyncio(loop_scope="module")
async def test_refusal_names_the_needed_credentials(called_site: CalledSite) -> None:
    refused = await called_site.clients["anonymous"].post("/v2/models/digits/infer")
    assert refused.status_code == 401
    assert "needs an API key, or a device's certificate" in refused.json()["error"]


LEAVES = tuple(TOPICS)


@dataclass
class Square:
    """A broker, and everybody who comes to it."""

    broker: GeneratedBroker
    peers: dict[str, Peer]


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Square]:
    folder = tmp_path_factory.mktemp("square")
    issuer, foreign = Issuer(folder / "issuer"), Issuer(folder / "foreign")
    good = {name: issuer.device(name) for name in ("a", "b", "revoked")}
    old = issuer.device("expired", made_s=time.time() - 100 * DAY_S)
    with GeneratedBroker(folder, issuer) as broker:
        broker.revoke("revoked")
        broker.broker.stop()  # a revocation holds for connections from then on; of those that stand other tests tell
        broker.broker.start()
        yield Square(
            broker,
            {
                "anonymous": broker.device(None),
                "stranger": broker.device(foreign.device("a")),
                "a": broker.device(good["a"]),
                "b": broker.device(good["b"]),
                "revoked": broker.device(good["revoked"]),
                "expired": broker.device(old),
                "gateway": broker.gateway(),
            },
        )


@pytest.mark.mosquitto
def test_topics_match_the_table(square: Square) -> None:
    assert set(MEMBERS) == set(square.peers)
    found = {leaf: dict.fromkeys(MEMBERS, "-") for leaf in LEAVES}
    inside = {who: peer for who, peer in square.peers.items() if peer.is_in}
    for peer in inside.values():
        for topic in (f"{PREFIX}/a/#", f"{PREFIX}/+/+/+", "#", f"$share/others/{PREFIX}/a/+"):
            peer.subscribe(topic)
    for leaf in LEAVES:
        for who, peer in inside.items():
            if peer.publish(f"{PREFIX}/a/{leaf}", f"{leaf} by {who}".encode()) == "Success":
                found[leaf][who] = "write"
    # What may be read has come by the time that each has read something of its own.
    for who, peer in inside.items():
        last = f"{PREFIX}/a/birth" if who == "gateway" else f"{PREFIX}/{who}/res"
        peer.subscribe(last)
        writer = inside["a"] if who == "gateway" else inside["gateway"]
        assert writer.publish(last, b"the end") == "Success"
        peer.wait(lambda peer=peer, last=last: (last, b"the end") in peer.received)  # type: ignore[misc]
        for topic, payload in peer.received:
            leaf = topic.removeprefix(f"{PREFIX}/a/")
            if payload != b"the end" and leaf in found:
                assert found[leaf][who] in ("-", "read")  # subscriptions that overlap bring it several times
                found[leaf][who] = "read"
            elif payload != b"the end":
                pytest.fail(f"{who} read {topic}")
        peer.received.clear()
    assert {leaf: list(cells.values()) for leaf, cells in found.items()} == TOPICS


@pytest.mark.mosquitto
def test_device_cannot_join_the_gateways_subscription(square: Square) -> None:
    """Mosquitto deals to a shared subscription before it looks who may read: so the gateways' group is a secret."""
    gateway, a, b = square.peers["gateway"], square.peers["a"], square.peers["b"]
    gateway.subscribe(f"$share/gateway-0123456789/{PREFIX}/+/req/+")
    b.subscribe(f"$share/gateway/{PREFIX}/+/req/+")
    for number in range(10):
        assert a.publish(f"{PREFIX}/a/req/shared", str(number).encode()) == "Success"
    gateway.wait(lambda: {payload for _, payload in gateway.received} >= {str(n).encode() for n in range(10)})
    assert not any(topic.startswith(f"{PREFIX}/a/") for topic, _ in b.received)
