"""Where the agent keeps its state: how much room there is, and how fast it is, by a file that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from firstline_core.hardware.catalogue import HIGHEST_COUNT, Storage
from firstline_core.hardware.tree import Tree, name_of

_FILE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 20
_SPARE = 16  # of the free space, at most this part is written
_SYNCS = 9
_LIMIT_S = 5.0
_MOUNTS_BYTES = 1 << 20


def storage(tree: Tree, folder: Path) -> Storage | None:
    """Room and file system; None where the folder is not there.

    Args:
        tree: the kernel's files.
        folder: the agent's state directory.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    if max(usage.total, usage.free) > HIGHEST_COUNT:
        return None  # a file system in user space may say anything
    return Storage(usage.total, usage.free, _file_system(tree, folder))


def measured(found: Storage, folder: Path) -> Storage:
    """The same with speeds, of a file of at most 32 MiB and for some seconds at most.

    Raises:
        OSError: the disk refuses.
    """
    wanted = min(_FILE_BYTES, found.free_bytes // _SPARE) // _PIECE_BYTES
    piece = os.urandom(_PIECE_BYTES)  # zeros are no work for a disk that compresses
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor, began_s, written = file.fileno(), time.perf_counter(), 0
        while written < wanted and time.perf_counter() - began_s < _LIMIT_S:
            os.write(descriptor, piece)
            os.fdatasync(descriptor) if written % 8 == 7 else None
            written += 1
        os.fsync(descriptor)
        write_s = time.perf_counter() - began_s
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        began_s = time.perf_counter()
        for at in range(written):
            os.pread(descriptor, _PIECE_BYTES, at * _PIECE_BYTES)
        read_s = time.perf_counter() - began_s
        sync_s = [_sync_s(descriptor) for _ in range(_SYNCS)]
    size_bytes = written * _PIECE_BYTES
    return replace(
        found,
        write_bytes_per_s=size_bytes / max(write_s, 1e-9) if written else None,
        read_bytes_per_s=size_bytes / max(read_s, 1e-9) if written else None,
        sync_s=statistics.median(sync_s),
    )


def _sync_s(descriptor: int) -> float:
    os.pwrite(descriptor, bytes(4096), 0)
    began_s = time.perf_counter()
    os.fsync(descriptor)
    return time.perf_counter() - began_s


def _file_system(tree: Tree, folder: Path) -> str:
    """Of the mount that is the longest beginning of the folder's path."""
    told = tree.text("proc/self/mounts", _MOUNTS_BYTES)
    best, found = -1, ""
    for line in told.splitlines() if isinstance(told, str) else ():
        fields = line.split(" ")
        if len(fields) > 2 and folder.resolve().is_relative_to(fields[1]) and len(fields[1]) >= best:
            best, found = len(fields[1]), name_of(fields[2])
    return found
