"""Both tiers as the processes that users start, for tests of a whole module: asked from outside, over real sockets."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from firstline.demo.site import DEVICE, Device, Site, Transport, open_site

DIGITS = Path(__file__).parents[2] / "models" / "digits" / "bundle"

__all__ = ["DEVICE", "Line", "Tier", "line"]


@dataclass(frozen=True)
class Tier:
    """One tier's address, what its callers send along, and where it logs."""

    name: str
    url: str
    token: str
    log: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True)
class Line:
    """A running device and its gateway; `cut` and `restore` are for the link between them."""

    agent: Tier
    gateway: Tier
    broker_port: int | None
    _device: Device
    _loop: asyncio.AbstractEventLoop

    @property
    def tiers(self) -> dict[str, Tier]:
        return {"agent": self.agent, "gateway": self.gateway}

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._device.wire.cut(), self._loop).result(10)

    def restore(self) -> None:
        asyncio.run_coroutine_threadsafe(self._device.wire.restore(), self._loop).result(10)


@contextmanager
def line(
    folder: Path,
    *,
    transport: Transport = "http",
    settings: str = "",
    environ: Mapping[str, str] | None = None,
) -> Iterator[Line]:
    """Starts both tiers with the digits, with an event loop in a separate thread, and stops them.

    Args:
        folder: empty.
        transport: of the link; "mqtt" also starts a broker.
        settings: further sections of the agent's configuration, as TOML.
        environ: set for the processes, such as FIRSTLINE_GATEWAY_API__BODY_LIMIT_BYTES.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = open_site(folder, DIGITS, mosquitto=transport == "mqtt")
    try:
        with patch.dict(os.environ, environ or {}):
            built: Site = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(60)
            device_running = built.device(transport, settings)
            device = asyncio.run_coroutine_threadsafe(device_running.__aenter__(), loop).result(60)
        try:
            yield Line(
                agent=Tier("agent", device.url, "", folder / f"agent-{transport}.log"),
                gateway=Tier(
                    "gateway", built.gateway_url, (folder / "device.token").read_text().strip(), folder / "gateway.log"
                ),
                broker_port=built._broker_port,
                _device=device,
                _loop=loop,
            )
        finally:
            asyncio.run_coroutine_threadsafe(device_running.__aexit__(None, None, None), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
