"""Python processes whose output is read, and which may have to end early."""

import gc
import os
from pathlib import Path

import pytest

from firstline_core.runtime.child import Interrupted, run_python

_WAITS_FOR_A_LINE = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); open(sys.argv[2]).read()"


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
