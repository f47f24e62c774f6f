"""What it costs a gateway to know who calls: a request without and with authentication and TLS, and a large fleet.

The gateway is a process of its own on loopback; the client keeps its connection. Requests of the ways in are sent in
turns, so that a machine that is busy for a while is busy for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from figures import Figure, report

from firstline.demo import assets
from firstline.demo.processes import tier
from firstline.workbench.dataset import open_dataset
from firstline_core.protocol.enrolment import DEVICES_PATH, ENROL_PATH, parse_join_token
from firstline_gateway.identity import ca, enrolment
from firstline_gateway.identity.enrolment import Issued
from firstline_gateway.identity.known import Known, read_changes
from firstline_gateway.settings import Store
from firstline_gateway.store.database import open_database

_INFER = "/firstline/v1/models/digits/infer"
_WARM_UP = 50


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="requests by each way in")
    parser.add_argument("--devices", type=int, default=100_000, help="devices that one gateway knows")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = await _requests(Path(folder), arguments.requests)
        figures += _fleet(Path(folder), arguments.devices)
    report("identity", figures)


async def _requests(folder: Path, count: int) -> list[Figure]:
    picture = next(content for content, _ in open_dataset(assets.digits() / "heldout", 1).read())
    async with AsyncExitStack() as stack:
        clients: dict[str, httpx.AsyncClient] = {}
        for name, settings in (("nobody asked", '[auth]\nmode = "off"\n'), ("plain", "")):
            config = _config(folder, name, settings)
            key = _key(config)
            gateway = await stack.enter_async_context(tier("firstline_gateway", config, folder / f"{name}.log"))
            headers = {} if name == "nobody asked" else {"Authorization": f"Bearer {key}"}
            clients[name] = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, headers=headers))
        config = _config(folder, "tls", '[tls]\nenabled = true\nhosts = ["127.0.0.1"]\n')
        key = _key(config)
        gateway = await stack.enter_async_context(tier("firstline_gateway", config, folder / "tls.log"))
        believed = ssl.create_default_context(cafile=str(folder / "tls" / "identity" / "authorities.pem"))
        keeper = httpx.AsyncClient(base_url=gateway.url, headers={"Authorization": f"Bearer {key}"}, verify=believed)
        clients["TLS, key"] = await stack.enter_async_context(keeper)
        shown = await _enrolled(folder / "tls", keeper)
        clients["TLS, certificate"] = await stack.enter_async_context(
            httpx.AsyncClient(base_url=gateway.url, verify=shown)
        )
        taken: dict[str, list[float]] = {name: [] for name in clients}
        for turn in range(_WARM_UP + count):
            for name, client in clients.items():
                started_s = time.perf_counter()
                (await client.post(_INFER, content=picture)).raise_for_status()
                if turn >= _WARM_UP:
                    taken[name].append(1000 * (time.perf_counter() - started_s))
        handshakes = []
        for _ in range(100):
            started_s = time.perf_counter()
            async with httpx.AsyncClient(base_url=gateway.url, verify=shown) as client:
                (await client.get("/v2/health/live")).raise_for_status()
            handshakes.append(1000 * (time.perf_counter() - started_s))
    figures = [Figure(f"{name}: median", round(statistics.median(found), 3), "ms") for name, found in taken.items()]
    figures += [
        Figure(f"{name}: 99 %", round(statistics.quantiles(found, n=100)[98], 3), "ms") for name, found in taken.items()
    ]
    return [*figures, Figure("a new connection with a certificate", round(statistics.median(handshakes), 3), "ms")]


def _fleet(folder: Path, devices: int) -> list[Figure]:
    """How long a gateway takes to learn of its devices when it starts, and the memory that this takes."""
    database = open_database(Store(url=f"sqlite:///{folder / 'fleet.db'}"))
    now_s = time.time()

    def issue(device: str) -> Issued:
        return Issued(f"{int(device.removeprefix('d')):040x}", "", now_s + 1e6)

    with database.begin() as on:
        for number in range(devices):
            sha256 = enrolment.secret_hash(str(number))
            on.execute(
                enrolment.JOIN_TOKENS.insert().values(
                    sha256=sha256, device=f"d{number}", created_by="", created_s=now_s, expires_s=now_s + 1e6
                )
            )
            enrolment.redeem(on, sha256, "", issue, now_s)
    known = Known()
    tracemalloc.start()
    started_s = time.perf_counter()
    with database.reading() as on:
        known.apply(read_changes(on, 0))
    took_s, held_bytes = time.perf_counter() - started_s, tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    started_s = time.perf_counter()
    with database.reading() as on:
        known.apply(read_changes(on, known.version))
    again_s = time.perf_counter() - started_s
    database.close()
    return [
        Figure(f"{devices} devices: learned at the start", round(took_s, 2), "s (traced)"),
        Figure(f"{devices} devices: memory", round(held_bytes / 2**20, 1), "MiB"),
        Figure(f"{devices} devices: a look that finds nothing new", round(1000 * again_s, 2), "ms"),
    ]


def _config(folder: Path, name: str, settings: str) -> Path:
    (folder / name).mkdir()
    config = folder / name / "gateway.toml"
    config.write_text(f'[models]\ndirectory = "{assets.digits() / "bundle"}"\n[log]\nlevel = "warning"\n{settings}')
    return config


def _key(config: Path) -> str:
    command = ("-m", "firstline_gateway", "key", "create", "bench", "--scope", "infer", "--scope", "fleet")
    done = subprocess.run([sys.executable, *command, "--config", config], check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def _enrolled(folder: Path, keeper: httpx.AsyncClient) -> ssl.SSLContext:
    """A device's side of TLS, with its certificate."""
    invited = await keeper.post(DEVICES_PATH, json={"devices": ["bench"]})
    token = parse_join_token(invited.raise_for_status().json()["invitations"][0]["token"])
    key = ca.new_key()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    body = {"secret": token.secret, "csr": request.public_bytes(Encoding.PEM).decode()}
    answer = json.loads((await keeper.post(ENROL_PATH, json=body)).raise_for_status().content)
    (folder / "device.pem").write_bytes(ca.key_pem(key) + answer["certificate"].encode())
    context = ssl.create_default_context(cadata=answer["ca"])
    context.load_cert_chain(folder / "device.pem")
    return context


if __name__ == "__main__":
    asyncio.run(main())
