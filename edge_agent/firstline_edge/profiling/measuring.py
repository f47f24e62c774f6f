"""Runs the process that measures, as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import msgspec

from firstline_core.errors import ConfigError, ProtocolError
from firstline_edge.profiling.process import LIMIT_BYTES, Order, Told

_END_S = 5.0


async def measured(order: Order, told: Callable[[Told], Awaitable[None]]) -> Told:
    """Measures in a process of its own, which ends with this call.

    Args:
        order: what.
        told: of each point.

    Returns:
        What the process said last: how many points there are.

    Raises:
        ConfigError: it cannot be measured here; the sentence says why.
        ProtocolError: the process ended as it should not.
    """
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
    said = Told()
    try:
        child.stdin.write(msgspec.json.encode(order))
        with contextlib.suppress(ConnectionError):  # it ended at once, and the next lines say so
            await child.stdin.drain()
        child.stdin.close()
        while line := await child.stdout.readline():
            said = msgspec.json.decode(line, type=Told)
            await told(said)
        await child.wait()
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"The process that measures says what makes no sense: {error}.") from error
    finally:
        await asyncio.shield(_end(child))
    if said.problem:
        raise ConfigError(said.problem)
    if child.returncode or said.measured is None:
        raise ProtocolError(f"The process that measures ended with {_ending(child.returncode)}.")
    return said


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


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
