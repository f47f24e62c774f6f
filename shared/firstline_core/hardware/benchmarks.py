"""Measures memory bandwidth and the disk, and tries every runtime provider and delegate."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from firstline_core.hardware.catalogue import MOST, Bandwidth, Engine, Storage
from firstline_core.hardware.kernel_files import printable_name

_SMALLEST_BYTES, _LARGEST_BYTES = 32 << 20, 256 << 20
_CACHES = 4  # times the last cache, as STREAM requires
_REPEATS = 7
_BANDWIDTH_S = 3.0
_ARRAYS = 3
_MEMORY_PARTS = 8  # at most this part of the available memory is used
_FILE_BYTES = 32 << 20
_BLOCK_BYTES = 1 << 20
_DISK_PARTS = 16  # at most this part of the free space is written
_SYNCS = 9
_DISK_S = 5.0
_TRIAL_S = 60.0
_OUTPUT_BYTES = 16 * 1024
_REASON_CHARACTERS = 160
_TRIAL = ("-P", "-m", "firstline_core.hardware.engine_trial")


def buffer_bytes(last_cache_bytes: int | None, available_bytes: float) -> int:
    """Returns the size of each array: larger than the cache, and small compared with the available memory.

    Args:
        last_cache_bytes: None if unknown.
        available_bytes: of memory.
    """
    wanted = min(max(_CACHES * (last_cache_bytes or 0), _SMALLEST_BYTES), _LARGEST_BYTES)
    return max(1 << 20, min(wanted, int(available_bytes) // (_MEMORY_PARTS * _ARRAYS)))


def bandwidth(size_bytes: int, now_s: Callable[[], float] = time.perf_counter) -> Bandwidth:
    """Measures memory bandwidth on one core, for a few seconds at most.

    The copy reads one array and writes one. The triad a = b + 3 c takes two passes of numpy, which together read three
    arrays and write two. As in STREAM (McCalpin 1995), reads caused by writes are not counted, and the fastest repeat
    counts.

    Args:
        size_bytes: of each of three arrays.
        now_s: a clock.
    """
    a, b, c = (np.ones(size_bytes // 8) for _ in range(_ARRAYS))

    def triad() -> None:
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)

    copies = _repeat_s(lambda: np.copyto(a, b), now_s)
    triads = _repeat_s(triad, now_s)
    return Bandwidth(
        2 * a.nbytes / min(copies),
        5 * a.nbytes / min(triads),
        a.nbytes,
        min(len(copies), len(triads)),
    )


def _repeat_s(call: Callable[[], None], now_s: Callable[[], float]) -> list[float]:
    """Seconds of each repeat, without a first one that touches the pages."""
    call()
    began_s = now_s()
    found: list[float] = []
    while not found or (len(found) < _REPEATS and now_s() - began_s < _BANDWIDTH_S / 2):
        at_s = now_s()
        call()
        found.append(max(now_s() - at_s, 1e-9))
    return found


def disk_speed(described: Storage, folder: Path) -> Storage:
    """Measures the disk with a temporary file of at most 32 MiB, for some seconds at most.

    Raises:
        OSError: the disk refuses.
    """
    wanted = min(_FILE_BYTES, described.free_bytes // _DISK_PARTS) // _BLOCK_BYTES
    block = os.urandom(_BLOCK_BYTES)  # a disk that compresses would not write zeros
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor, began_s, written = file.fileno(), time.perf_counter(), 0
        while written < wanted and time.perf_counter() - began_s < _DISK_S:
            os.write(descriptor, block)
            os.fdatasync(descriptor) if written % 8 == 7 else None
            written += 1
        os.fsync(descriptor)
        write_s = time.perf_counter() - began_s
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        began_s = time.perf_counter()
        for at in range(written):
            os.pread(descriptor, _BLOCK_BYTES, at * _BLOCK_BYTES)
        read_s = time.perf_counter() - began_s
        sync_s = [_sync_s(descriptor) for _ in range(_SYNCS)]
    size_bytes = written * _BLOCK_BYTES
    return replace(
        described,
        write_bytes_per_s=size_bytes / max(write_s, 1e-9) if written else None,
        read_bytes_per_s=size_bytes / max(read_s, 1e-9) if written else None,
        sync_s=statistics.median(sync_s),
    )


def _sync_s(descriptor: int) -> float:
    os.pwrite(descriptor, bytes(4096), 0)
    began_s = time.perf_counter()
    os.fsync(descriptor)
    return time.perf_counter() - began_s


def engines(progress: Callable[[str], None] = lambda _: None, limit_s: float = _TRIAL_S) -> tuple[Engine, ...]:
    """Tries every provider and delegate that this Python's runtimes list, one after the other.

    That a build lists a provider only means that it was compiled in. A missing or old driver fails when a session is
    made, when it runs, or by ending the process, so each is tried in a process of its own.

    Args:
        progress: receives what is tried next.
        limit_s: for each.
    """
    found: list[Engine] = []
    for runtime in ("onnx", "tflite"):
        progress(f"which providers {runtime} has")
        listed, _ = _run_trial([runtime], limit_s)
        try:
            names = [printable_name(name) for name in msgspec.json.decode(listed, type=list[str])][:MOST]
        except msgspec.MsgspecError:
            names = []
        for name in names:
            progress(f"{runtime} on {name}")
            found.append(try_engine(runtime, name, limit_s=limit_s))
    return tuple(found[:MOST])


def try_engine(runtime: str, name: str, *, limit_s: float = _TRIAL_S, trial: Sequence[str] = _TRIAL) -> Engine:
    """Returns whether a provider or delegate runs the trial model.

    Args:
        runtime: "onnx" or "tflite".
        name: of the provider or delegate.
        limit_s: after which the process is ended.
        trial: arguments of Python that try it.
    """
    output, why = _run_trial([runtime, name], limit_s, trial)
    if not why:
        try:
            return msgspec.json.decode(output, type=Engine)
        except msgspec.MsgspecError:
            why = "Its trial gave no readable result."
    return Engine(runtime, printable_name(name), works=False, reason=why[:_REASON_CHARACTERS])


def _run_trial(arguments: list[str], limit_s: float, trial: Sequence[str] = _TRIAL) -> tuple[bytes, str]:
    """Returns the output of the trial, and why it failed; "" if it did not."""
    try:
        child = subprocess.run(  # noqa: S603 (this Python, and names that it listed itself)
            [sys.executable, *trial, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # drivers write to it
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return b"", f"It did not end within {limit_s:.0f} s."
    if child.returncode < 0:
        return b"", f"It ended its process with {signal.Signals(-child.returncode).name}."
    if child.returncode:
        return b"", f"Its process ended with exit code {child.returncode}."
    return child.stdout[:_OUTPUT_BYTES], ""
