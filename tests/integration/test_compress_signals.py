"""`firstline compress` as a stopped process: it leaves no files."""

import os
import signal
from pathlib import Path

import pytest
from support.digits import few_scans
from support.forks import ForkedProcess
from support.gateway import DIGITS


@pytest.mark.parametrize(
    ("phase", "number", "code"),
    [
        ("Certifying ...", signal.SIGTERM, 143),
        ("static-int8: sensitivity ...", signal.SIGINT, 130),
        ("static-int8: sensitivity ...", signal.SIGHUP, 129),
    ],
)
def test_a_signal_removes_all_temporary_files(tmp_path: Path, phase: str, number: signal.Signals, code: int) -> None:
    work, out, data = tmp_path / "work", tmp_path / "out", few_scans(tmp_path / "few", 240)
    work.mkdir()
    arguments = ["compress", DIGITS, "--data", data, "--out", out / "next", "--force"]
    process = ForkedProcess("firstline", *arguments, environ=os.environ | {"TMPDIR": str(work)})
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip() == phase:
                break
        assert len(list(work.glob("firstline-compress-*"))) == 1
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
        assert process.returncode == code
        assert output == ""
        assert "Traceback" not in errors
        assert [left for left in work.iterdir() if left.is_dir()] == []  # ONNX Runtime's own neither
        assert not out.exists()
    finally:
        process.kill()
