"""A disk that is really full, where this user may mount one."""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of a few mebibytes, to be filled and freed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leaves not a byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size_bytes in (4096, 1):
                try:
                    while file.write(b"\0" * size_bytes) == size_bytes:
                        pass
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def free(self) -> None:
        self._filler.unlink()

    def become_read_only(self) -> None:
        """Refuses every change from now on, while no file is open for writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


@contextlib.contextmanager
def small_disk(path: Path, size_mib: int = 1) -> Iterator[SmallDisk]:
    """Mounts one at `path`; skips the test where that is not allowed."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
