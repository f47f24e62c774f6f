"""A control group of the kernel's with a memory limit (version 1 or 2), and a process that takes memory in it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_GONE_S = 10.0
_FIRST_VICTIM = 900  # of 1,000: before any other process of the group (proc_pid_oom_score_adj(5))
_HOG = """
import mmap, sys
held = []
for line in sys.stdin:
    while len(held) > int(line):
        held.pop().close()
    while len(held) < int(line):
        held.append(mmap.mmap(-1, 1 << 20))
        held[-1].write(b"x" * (1 << 20))
    print(len(held), flush=True)
"""


class UnlimitedError(Exception):
    """No group can be made here; says why."""


class ControlGroup:
    """One that is there.

    Args:
        folder: the group's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._v2 = (folder / "memory.max").exists()

    def command(self, command: Sequence[str]) -> list[str]:
        """The same in this group from its first page on."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def victim(self, command: Sequence[str]) -> list[str]:
        """The same, and what the kernel kills first of this group."""
        enters = f'echo {_FIRST_VICTIM} > /proc/self/oom_score_adj && exec "$0" "$@"'
        return self.command(["sh", "-c", enters, *command])

    def limit(self, limit_bytes: int) -> None:
        """Memory that all of its processes may take together; without swap."""
        (self.folder / ("memory.max" if self._v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        swap = self.folder / ("memory.swap.max" if self._v2 else "memory.memsw.limit_in_bytes")
        if swap.exists():
            swap.write_text("0" if self._v2 else str(limit_bytes))

    def used_bytes(self) -> int:
        """With pages of files."""
        return int((self.folder / ("memory.current" if self._v2 else "memory.usage_in_bytes")).read_text())

    def kills(self) -> int:
        """Processes that the kernel killed in it for want of memory."""
        events = (self.folder / ("memory.events" if self._v2 else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in events.splitlines())["oom_kill"])

    def remove(self) -> None:
        """Ends what is left in it, and removes it."""
        until_s = time.monotonic() + _GONE_S
        while True:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.01)  # the kernel gives no signal when the last of them is gone
            else:
                return


@contextmanager
def limited(limit_bytes: int) -> Iterator[ControlGroup]:
    """A group of its own with a limit, removed at the end.

    Raises:
        UnlimitedError: control groups cannot be written here, or their memory controller is not there.
    """
    mount = _MOUNT if (_MOUNT / "cgroup.controllers").exists() else _MOUNT / "memory"
    folder = mount / f"firstline-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise UnlimitedError(f"no control group can be made in {mount}: {error.strerror}") from error
    group = ControlGroup(folder)
    try:
        try:
            group.limit(limit_bytes)
        except OSError as error:
            raise UnlimitedError(f"the memory of {folder} cannot be limited: {error.strerror}") from error
        yield group
    finally:
        group.remove()


class Hog:
    """A process that holds a given amount of memory.

    Args:
        group: that it is in.
    """

    def __init__(self, group: ControlGroup) -> None:
        self.process = subprocess.Popen(
            group.command([sys.executable, "-c", _HOG]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.held_mib = 0

    def holds(self, mib: int) -> None:
        """Returns once it does."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{mib}\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            raise ChildProcessError(f"The kernel killed the process that should hold {mib} MiB.")
        self.held_mib = int(reply)

    def close(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()
