"""The model, the second gateway that runs it on half a core, and an engine in front of it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import laborious
from firstline_core.processing.steps import InputSpec
from firstline_core.types import ModelKey
from firstline_gateway.app import runtime_options
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.factory import open_executors
from firstline_gateway.models.folder import load_repository
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Settings

KEY = ModelKey("m", 1)
_ROUNDS, _WIDTH = 100, 1024


@dataclass(frozen=True)
class Gateway:
    """A gateway in a separate process."""

    process: subprocess.Popen[str]
    url: str


@dataclass(frozen=True)
class Site:
    folder: Path
    bundle: Path
    far: Gateway
    cores: Sequence[int]


@contextlib.contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Limits this process to the first core; the last core runs the other gateway and the busy loop."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[0]})
    try:
        bundle = _bundle(folder / "bundle")
        execution = "[execution]\nsessions = 1\n"
        with _counting(cores[-1]), gateway(folder, "far", bundle, cores[-1], execution) as far:
            yield Site(folder, bundle, far, cores)
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def gateway(folder: Path, name: str, bundle: Path, core: int, more: str) -> Iterator[Gateway]:
    """Starts a gateway on one core, with additional tables in its configuration."""
    config = folder / f"{name}.toml"
    config.write_text(
        f'[api]\nport = 0\n[auth]\nmode = "off"\n[models]\ndirectory = "{bundle}"\n'
        f'[store]\nurl = "sqlite:///{folder / name}.db"\n[log]\nlevel = "error"\n{more}'
    )
    command = ["taskset", "-c", str(core), sys.executable, "-m", "firstline_gateway", "run", "--config", str(config)]
    with subprocess.Popen([*command, "-o", "json"], stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            yield Gateway(process, str(json.loads(process.stdout.readline())["url"]))
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


@contextlib.asynccontextmanager
async def engine(found: Site, names: Sequence[str]) -> AsyncIterator[Dispatcher]:
    """Opens the gateway's engine with these executors: "here", "far" or both."""
    executors: dict[str, dict[str, object]] = {
        "here": {"engine": "local", "sessions": 1},
        "far": {"engine": "oip", "endpoints": [found.far.url], "sessions": 1},
    }
    settings: Settings = load(
        None,
        environ={},
        overrides={
            "models.directory": str(found.bundle),
            "store.url": f"sqlite:///{found.folder / 'near.db'}",
            "executors": {name: executors[name] for name in names},
        },
    )
    options = runtime_options(settings)
    repository = load_repository(found.bundle, options if settings.loads_here else None)
    opened = open_executors(settings, repository, options)
    assert isinstance(opened, Dispatcher)
    await opened.start()
    try:
        yield opened
    finally:
        await opened.close(5.0)


def _bundle(folder: Path) -> Path:
    folder.mkdir()
    full = model(laborious(folder / "full.onnx", 4, rounds=_ROUNDS, width=_WIDTH), folder)
    write_manifest(folder, [], ["a", "b", "c", "d"], name="m", full=full, inputs=(InputSpec("x", "FP32", (-1, 4)),))
    return folder


@contextlib.contextmanager
def _counting(core: int) -> Iterator[None]:
    """Runs a busy loop that takes half of a core from the other process on it."""
    process = multiprocessing.get_context("spawn").Process(target=_count, args=(core,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _count(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass
