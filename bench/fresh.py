"""Clones this checkout into an empty folder and runs `make demo` there, as a newcomer would.

What is timed starts with nothing but Python, make and the package index (whose client may have a cache).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, report

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 180.0


def processes_of_session(session: int) -> list[str]:
    """Command lines of what still runs in a session (`setsid` gave the demo its own)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Behind the command's name in brackets: state, parent, group, session.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def main() -> int:
    """Returns the exit code: 0 where every figure holds."""
    with tempfile.TemporaryDirectory(prefix="firstline-fresh-") as folder:
        clone = Path(folder) / "firstline"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        # The variables of a surrounding make or environment are not a newcomer's.
        environ = {
            key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL", "VIRTUAL_ENV"}
        }
        start_s = time.monotonic()
        demo = subprocess.Popen(
            ["make", "demo", "DEMO_ARGS=-o json"],
            cwd=clone,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        output, _ = demo.communicate()
        seconds = time.monotonic() - start_s
        left = processes_of_session(demo.pid)
    for command in left:
        print(f"left running: {command}", file=sys.stderr)
    text = output.decode()
    summary = json.loads(text[text.index("{") :])
    return report(
        "fresh",
        [
            Figure("make demo in a fresh clone, install included", round(seconds, 1), "s", "< 180", seconds < LIMIT_S),
            Figure("make demo's exit code", demo.returncode, "", "0", demo.returncode == 0),
            Figure("processes left running", len(left), "", "0", not left),
            Figure("requests of the demo", summary["requests"], "", "> 0", summary["requests"] > 0),
            Figure("requests or corrections lost", summary["lost"], "", "0", summary["lost"] == 0),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
