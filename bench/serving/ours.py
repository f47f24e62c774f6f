"""The gateway as its users run it, with everything on, and raw ASGI for comparison."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path

from bench.serving.bodies import TRACEPARENT
from bench.serving.models import Kind, write_bundle
from bench.serving.processes import Cores, Server, free_port, started

_CHECKOUT = Path(__file__).parents[2]
# A limit that is looked at for each request and never reached.
_REQUESTS_PER_S = "1000000"


def gateway_folder(folder: Path, models: Mapping[str, Kind]) -> dict[str, str]:
    """A gateway's configuration, its models and an API key with a limit.

    Returns:
        The headers of a request: the key and a trace's.
    """
    for name, kind in models.items():
        write_bundle(kind, folder / "models" / name)
    config = folder / "gateway.toml"
    config.write_text('[auth]\nmode = "tokens"\n')
    key = create_key(config, "bench", "--requests-per-s", _REQUESTS_PER_S)
    return {"Authorization": f"Bearer {key}", "traceparent": TRACEPARENT}


def create_key(config: Path, name: str, *options: str) -> str:
    """Creates an API key of a gateway and returns it."""
    command = [sys.executable, "-m", "firstline_gateway", "key", "create", name, *options, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def is_ready(port: int) -> bool:
    """Whether a gateway says that it is ready."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK


def gateway(
    config: Path, on: Cores, answers: Callable[[int], bool] = is_ready, headers: dict[str, str] | None = None
) -> AbstractContextManager[Server]:
    """Runs `firstline-gateway run` until it answers; its log is gateway.log next to the configuration."""
    port = free_port()
    command = [sys.executable, "-m", "firstline_gateway", "run", "--config", str(config), "--port", str(port)]
    return started(command, port=port, on=on, log=config.parent / "gateway.log", answers=answers, headers=headers)


def raw_asgi(
    model: Path, on: Cores, answers: Callable[[int], bool], threads: int = 0
) -> AbstractContextManager[Server]:
    """Runs the least that can be done on the same server (`load/raw_asgi.py`), without batches."""
    port = free_port()
    command = [sys.executable, "-m", "bench.load.raw_asgi", str(model), "--port", str(port), "--threads", str(threads)]
    environ = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(_CHECKOUT), *sys.path])}
    return started(command, port=port, on=on, log=model.with_suffix(".log"), answers=answers, environ=environ)
