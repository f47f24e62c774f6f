"""Tiers in processes of their own on loopback: one tier with its configuration, or all that a bundle needs."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.storage.files import system_reason

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
_DEVICE = "local-device"
_GATEWAY = """\
[models]
directory = "full"
"""
_AGENT = """\
[agent]
device_id = "{device}"
state_dir = "state-{name}"
[models]
directories = ["edge"]
"""
HTTP_LINK = """\
[[links]]
kind = "http"
url = "{url}"
token_file = "device.token"
"""
"""An agent's link to `run_gateway` in the same folder."""


@dataclass(frozen=True, slots=True)
class RunningTier:
    """A tier's process and the address where it answers."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def tier(module: str, config: Path, log: Path, port: int = 0) -> AsyncIterator[RunningTier]:
    """Runs `python -m module run`, yields it once it is ready, and stops it at the end of the block.

    Args:
        module: "firstline_gateway" or "firstline_edge".
        config: its TOML file.
        log: takes its standard error.
        port: that it listens on; 0 lets the system choose.

    Raises:
        ConfigError: it did not become ready; the error quotes its last output.
    """
    command = [sys.executable, "-P", "-m", module, "run", "--config", str(config), "--port", str(port), "-o", "json"]
    async with process(command, log) as running:
        assert running.stdout is not None  # noqa: S101 (it is a pipe, see `process`)
        try:
            line = await asyncio.wait_for(running.stdout.readline(), START_TIMEOUT_S)
            url: str = json.loads(line)["url"]
        except (TimeoutError, ValueError, KeyError) as error:
            raise ConfigError(f"{module} did not start. It said: {last_words(log)}") from error
        yield RunningTier(url, running)


@asynccontextmanager
async def process(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a command whose standard output is a pipe, and stops it at the end of the block."""
    with log.open("wb") as stream:
        running = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=stream
        )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.terminate()
            try:
                await asyncio.wait_for(running.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                running.kill()
                await running.wait()


def last_words(log: Path) -> str:
    """Returns the last lines of a process's standard error."""
    return " ".join(log.read_text(errors="replace").splitlines()[-3:]) or "nothing"


async def create_device_key(config: Path, device: str) -> str:
    """Returns an API key for a device, created by the operator's command.

    Args:
        config: of the gateway.
        device: its id.
    """
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "firstline_gateway", "key", "create", device, "--device"),
        *("--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        key, errors = await command.communicate()
    finally:
        if command.returncode is None:
            command.kill()
            await command.wait()
    if command.returncode:
        raise ConfigError(f"The device's key could not be made: {errors.decode(errors='replace').strip()}")
    return key.decode()


@dataclass(frozen=True, slots=True)
class ServedBundle:
    """A bundle's tiers. Requests go to `url`.

    Attributes:
        agent: None if the bundle has no edge model.
        gateway: None if the bundle has no full model.
        logs: the folder of the tiers' logs.
    """

    agent: RunningTier | None
    gateway: RunningTier | None
    logs: Path

    @property
    def url(self) -> str:
        first = self.agent or self.gateway
        assert first is not None  # noqa: S101 (a bundle has a model)
        return first.url

    async def ended(self, report: Callable[[str], None]) -> str:
        """Waits until the tier that answers ends on its own, and returns how.

        Args:
            report: is called with a sentence if the gateway behind an agent ends; the agent continues.
        """
        first = "agent" if self.agent is not None else "gateway"
        names = {"agent": self.agent, "gateway": self.gateway}
        waiting = {
            asyncio.ensure_future(running.process.wait()): name
            for name, running in names.items()
            if running is not None
        }
        try:
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                how = {waiting.pop(each): each.result() for each in done}
                if first in how:
                    return f"The {first} ended {self._how(first, how[first])}."
                report(f"The gateway ended {self._how('gateway', how['gateway'])}; the agent answers alone.")
        finally:
            for each in waiting:
                each.cancel()

    def _how(self, name: str, code: int) -> str:
        """Returns the signal, or the exit code and the last output of a process that ended."""
        if code < 0:
            return f"with signal {-code}"
        last_line = f" and said: {last_words(self.logs / f'{name}.log').rstrip('.')}" if code else ""
        return f"with exit code {code}{last_line}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # `copytree` goes on after a file that fails, and lists all of them.
        cause = error.args[0][0][2] if isinstance(error, shutil.Error) else system_reason(error)
        raise ConfigError(f"{folder} cannot be written: {cause}. Set TMPDIR to a folder with more room.") from error


@asynccontextmanager
async def run_gateway(
    bundle: Bundle, folder: Path, settings: str, *, device: str = "", port: int = 0
) -> AsyncIterator[RunningTier]:
    """Runs a gateway with a bundle's full model.

    Args:
        bundle: copied to the folder.
        folder: of its configuration and its log.
        settings: sections of its configuration besides the models, as TOML.
        device: gets an API key for `HTTP_LINK`; "" for none.
        port: that it listens on; 0 lets the system choose.

    Raises:
        ConfigError: the files cannot be written, or it did not start.
    """
    config = folder / "gateway.toml"
    with _writing(folder):
        shutil.copytree(bundle.path, folder / "full" / bundle.manifest.name)
        config.write_text(_GATEWAY + settings)
        if device:
            token_file = folder / "device.token"
            token_file.touch(mode=0o600)
            token_file.write_text(await create_device_key(config, device))
    async with tier("firstline_gateway", config, folder / "gateway.log", port) as running:
        yield running


@asynccontextmanager
async def run_agent(
    bundle: Bundle, folder: Path, settings: str, *, device: str, name: str = "agent", port: int = 0
) -> AsyncIterator[RunningTier]:
    """Runs an agent with a bundle's edge models; the next one of the same name finds its state.

    Args:
        bundle: copied to the folder without the full model.
        folder: of its configuration, log and state.
        settings: sections of its configuration besides the models, as TOML.
        device: its id.
        name: of its files.
        port: that it listens on; 0 lets the system choose.

    Raises:
        ConfigError: the files cannot be written, or it did not start.
    """
    manifest, config = bundle.manifest, folder / f"{name}.toml"
    edge_files = {artefact.file for model in manifest.edge for artefact in model.artefacts}
    full_files = [] if manifest.full is None else [artefact.file for artefact in manifest.full.artefacts]
    left_out = shutil.ignore_patterns(*(Path(file).name for file in full_files if file not in edge_files))
    models = folder / "edge" / manifest.name
    with _writing(folder):
        if not models.exists():  # copies of read-only files cannot be written again
            shutil.copytree(bundle.path, models, ignore=left_out)
        config.write_text(_AGENT.format(device=device, name=name) + settings)
    async with tier("firstline_edge", config, folder / f"{name}.log", port) as running:
        yield running


@asynccontextmanager
async def serve_bundle(bundle: Bundle, folder: Path, port: int = 0) -> AsyncIterator[ServedBundle]:
    """Runs an agent with the edge models and a gateway with the full model, or one of them for a bundle of one tier.

    Args:
        bundle: of one or two tiers.
        folder: an empty folder for configurations, logs and state.
        port: of the tier that answers requests; 0 lets the system choose.

    Raises:
        ConfigError: the files cannot be written, or a process did not start.
    """
    manifest = bundle.manifest
    agent = gateway = None
    async with AsyncExitStack() as stack:
        if manifest.full is not None:
            # Only the agent reaches the gateway. Without an agent, callers reach it, from this machine alone.
            mode, device, own_port = ("tokens", _DEVICE, 0) if manifest.edge else ("off", "", port)
            settings = f'[auth]\nmode = "{mode}"\n'
            gateway = await stack.enter_async_context(
                run_gateway(bundle, folder, settings, device=device, port=own_port)
            )
        if manifest.edge:
            link = "" if gateway is None else HTTP_LINK.format(url=gateway.url)
            agent = await stack.enter_async_context(run_agent(bundle, folder, link, device=_DEVICE, port=port))
        yield ServedBundle(agent, gateway, folder)
