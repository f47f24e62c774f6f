"""Python processes whose output is read, and which may have to end early."""

import fcntl
import gc
import os
from pathlib import Path

import pytest

from firstline_core.runtime.child import Interrupted, run_python

_WAITS_FOR_A_LINE = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); open(sys.argv[2]).read()"
_LEAVES_A_PROCESS = """
import fcntl, os, subprocess, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
subprocess.Popen(["sleep", "600"], pass_fds=[lock.fileno()])
open(sys.argv[2], "w").write(str(os.getpid()))
"""


def test_a_child_that_ends_as_it_has_to_leaves_no_open_pipe(tmp_path: Path) -> None:
    process_id, may_end = tmp_path / "pid", tmp_path / "may_end"
    os.mkfifo(may_end)

    def must_end() -> str:
        may_end.write_text("end\n")  # blocks until the child reads it
        os.waitid(os.P_PID, int(process_id.read_text()), os.WEXITED | os.WNOWAIT)
        return "It is no longer needed."

    with pytest.raises(Interrupted, match="no longer needed"):
        run_python(("-c", _WAITS_FOR_A_LINE, str(process_id), str(may_end)), limit_s=60.0, must_end=must_end)
    gc.collect()  # a pipe that is still open would be reported


def test_processes_that_a_child_leaves_are_ended(tmp_path: Path) -> None:
    lock, child = tmp_path / "lock", tmp_path / "pid"

    def must_end() -> str:
        if not child.exists() or not child.read_text():
            return ""
        os.waitid(os.P_PID, int(child.read_text()), os.WEXITED | os.WNOWAIT)
        return "It left a process."

    with pytest.raises(Interrupted, match="left a process"):
        run_python(("-c", _LEAVES_A_PROCESS, str(lock), str(child)), limit_s=60.0, must_end=must_end)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
