"""Runs the process that measures, as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.profile.need import Need
from firstline_core.profile.spawned import ending
from firstline_core.telemetry.logs import logger
from firstline_edge.profiling.gate import Say
from firstline_edge.profiling.process import LIMIT_BYTES, Order, Told
from firstline_edge.profiling.yielding import Cause

log = logger(__name__)

Telling = Callable[[Told], Awaitable[None]]

_END_S = 5.0
_TRIES = 3
"""Of a point that the device cannot bear."""


class Permits(Protocol):
    """Of `gate.Gate`."""

    async def opens(self, needed: Need, say: Say) -> str: ...

    async def shuts(self, needed: Need) -> Cause: ...


async def measured(order: Order, told: Telling, gate: Permits) -> Told:
    """Measures in a process of its own, which ends with this call.

    A point that has to end is measured once more, by another process, when there is room; the third time it is left
    out, with the reason.

    Args:
        order: what.
        told: of each point, and of why one waits.
        gate: asked before each point, and watched while it is measured.

    Returns:
        What the process said last: how many points there are.

    Raises:
        ConfigError: it cannot be measured here; the sentence says why.
        ProtocolError: the process ended as it should not.
    """
    ended: dict[str, list[Cause]] = {}
    while True:
        run = _Run(order, told, gate, {name: why for name, causes in ended.items() if (why := _too_often(causes))})
        try:
            return await run.ends()
        except _EndedError as error:
            ended.setdefault(error.point, []).append(error.cause)
            order = replace(order, anew=order.anew and not run.said.done)  # what was measured by now is new
            log.info("a point is ended, and is measured later", point=error.point, why=error.cause.sentence)


def _too_often(causes: list[Cause]) -> str:
    return f"It was ended {len(causes)} times: {causes[-1].sentence}." if len(causes) >= _TRIES else ""


class _EndedError(Exception):
    """A point had to end."""

    def __init__(self, point: str, cause: Cause) -> None:
        super().__init__(cause.sentence)
        self.point = point
        self.cause = cause


class _Run:
    """One process, from its order to its end."""

    def __init__(self, order: Order, told: Telling, gate: Permits, left_out: Mapping[str, str]) -> None:
        self._order = order
        self._told = told
        self._gate = gate
        self._left_out = left_out
        self.said = Told()

    async def ends(self) -> Told:
        """Raises as `measured`; `_EndedError` where a point has to end."""
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "firstline_edge.profiling.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
            limit=LIMIT_BYTES,
        )
        assert child.stdin is not None and child.stdout is not None  # noqa: S101 (they are pipes)
        try:
            await _write(child.stdin, self._order)
            needed: Need | None = None
            while line := await self._line(child.stdout, needed):
                needed = None
                self.said = msgspec.json.decode(line, type=Told)
                await self._told(self.said)
                if self.said.needs is not None:
                    needed = self.said.needs
                    await _write(child.stdin, await self._permitted(needed))
            await child.wait()
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"The process that measures says what makes no sense: {error}.") from error
        finally:
            await asyncio.shield(_end(child))
        if self.said.problem:
            raise ConfigError(self.said.problem)
        if child.returncode or self.said.measured is None:
            raise ProtocolError(f"The process that measures ended with {ending(child.returncode)}.")
        return self.said

    async def _permitted(self, needed: Need) -> str:
        """The gate's answer; of some points it is known before."""

        async def say(sentence: str) -> None:
            await self._told(replace(self.said, needs=None, waits=sentence))

        return self._left_out.get(needed.point, "") or await self._gate.opens(needed, say)

    async def _line(self, out: asyncio.StreamReader, needed: Need | None) -> bytes:
        """The next one; while a point is measured, only as long as it may."""
        if needed is None:
            return await out.readline()
        reading = asyncio.create_task(out.readline())
        shutting = asyncio.create_task(self._gate.shuts(needed))
        try:
            await asyncio.wait({reading, shutting}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
            raise _EndedError(needed.point, shutting.result())
        finally:
            for task in (reading, shutting):
                task.cancel()
            await asyncio.gather(reading, shutting, return_exceptions=True)


async def _write(to: asyncio.StreamWriter, what: Order | str) -> None:
    to.write(msgspec.json.encode(what) + b"\n")
    with contextlib.suppress(ConnectionError):  # it ended at once, and what reads says so
        await to.drain()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Asks it to end, which takes its own process with it; then does not ask."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        async with asyncio.timeout(_END_S):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
