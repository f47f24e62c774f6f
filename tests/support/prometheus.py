"""Debian's Prometheus with the shipped configuration, which scrapes a gateway of a test often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import yaml
from support import needs
from support.broker import free_port
from support.yaml_files import read_yaml

MONITORING = Path(__file__).parents[2] / "cloud_gateway" / "monitoring"
RULES = MONITORING / "rules.yml"


@asynccontextmanager
async def prometheus(folder: Path, gateway_url: str, key: str, rules: Path = RULES) -> AsyncIterator[httpx.AsyncClient]:
    """Runs it, and yields a client of its API.

    Args:
        folder: of its files; it reads the API key from `key` in it with each scrape.
        gateway_url: of the gateway.
        key: an API key of the gateway.
        rules: that it evaluates.
    """
    program = needs.program("prometheus", "`make prometheus`")
    (folder / "key").write_text(key)
    settings = read_yaml(MONITORING / "prometheus.yml")
    settings["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    settings["rule_files"] = [str(rules)]
    (job,) = settings["scrape_configs"]
    del job["tls_config"]
    job |= {"scheme": "http", "authorization": {"credentials_file": str(folder / "key")}}
    job["static_configs"] = [{"targets": [gateway_url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield client
    finally:
        running.kill()
        await running.wait()


async def alerts(client: httpx.AsyncClient, *states: str) -> set[str]:
    """The alerts whose condition holds; most fire only after it has held for minutes.

    Args:
        client: of Prometheus.
        states: "pending", "firing"; both if there are none.
    """
    try:
        answer = (await client.get("/api/v1/alerts")).json()
    except (httpx.TransportError, ValueError):  # it is starting, or answers so in plain text
        return set()
    found = answer["data"]["alerts"]
    return {each["labels"]["alertname"] for each in found if not states or each["state"] in states}
