"""Starts the tiers and a broker as processes of their own, and leaves none behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from firstline_core.errors import ConfigError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class RunningTier:
    """A tier's process and the address where it answers."""

    url: str
    process: asyncio.subprocess.Process


@asynccontextmanager
async def tier(module: str, config: Path, log: Path) -> AsyncIterator[RunningTier]:
    """Runs `python -m module run`, yields it when it says that it is ready, and stops it.

    Args:
        module: "firstline_gateway" or "firstline_edge".
        config: its TOML file.
        log: takes its standard error.

    Raises:
        ConfigError: it did not become ready; its last words are quoted.
    """
    command = [sys.executable, "-m", module, "run", "--config", str(config), "--port", "0", "-o", "json"]
    async with _process(command, log) as process:
        assert process.stdout is not None  # noqa: S101 (it is a pipe, see _process)
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
            url: str = json.loads(line)["url"]
        except (TimeoutError, ValueError, KeyError) as error:
            raise ConfigError(f"{module} did not start. It said: {_last_words(log)}") from error
        yield RunningTier(url, process)


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[int]:
    """Runs Mosquitto on a free loopback port, open to this machine only, and yields the port.

    Raises:
        ConfigError: it did not start.
    """
    port = _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
    log = folder / "mosquitto.log"
    async with _process([str(mosquitto()), "-c", str(config)], log) as process:
        for _ in range(int(START_TIMEOUT_S / 0.05)):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                if process.returncode is not None:
                    raise ConfigError(f"mosquitto did not start. It said: {_last_words(log)}") from None
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield port


def mosquitto() -> Path | None:
    """The broker's binary, or None where it is not installed; Debian keeps it where only root's PATH looks."""
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


@asynccontextmanager
async def _process(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=stream
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_words(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").splitlines()[-3:]) or "nothing"
