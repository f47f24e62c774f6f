"""`firstline demo` as a stopped process: it leaves no processes and no files."""

import os
import signal
from pathlib import Path

import pytest
from support.forks import ForkedProcess


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("measuring both models alone", signal.SIGTERM),
        ("measuring both models alone", signal.SIGHUP),
        ("HTTP: online", signal.SIGINT),
    ],
)
def test_signal_stops_all_processes(tmp_path: Path, phase: str, number: signal.Signals) -> None:
    demo = ForkedProcess("firstline", "demo", "-o", "json", environ=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.strip() == phase:
                break
        children = _children(demo.pid)
        assert len(children) >= (0 if phase.startswith("measuring") else 2)
        demo.send_signal(number)
        demo.send_signal(number)  # of an impatient caller
        output, errors = demo.communicate(timeout=30)
        assert demo.returncode == 128 + number
        assert output == ""
        assert "Traceback" not in errors
        assert not any(_runs(child) for child in children)
        assert list(tmp_path.glob("firstline-demo-*")) == []
    finally:
        for child in _children(demo.pid) if demo.poll() is None else []:
            os.kill(child, signal.SIGKILL)
        demo.kill()
