"""Commands within this process, or against a gateway in it."""

import asyncio
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from support.forks import run_forked
from typer.testing import CliRunner, Result

from firstline.cli.app import app
from firstline_edge.__main__ import main as agent_main
from firstline_gateway.__main__ import main


def run_agent_here(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `edge-agent` within this process, which has imported what it needs."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["edge-agent", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        code = agent_main()
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def run_here(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `firstline-gateway` within this process, which has imported what it needs."""
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        code = main(list(map(str, arguments)))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


async def firstline(url: str, token: str, *arguments: object, code: int = 0, **environment: str) -> Result:
    """Runs `firstline ARGUMENTS` in a thread, as the gateway answers on this one; fails on another exit code."""
    environment |= {"FIRSTLINE_GATEWAY": url, "FIRSTLINE_TOKEN": token}
    result = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, arguments)], env=environment)
    assert result.exit_code == code, result.output
    return result


async def gateway_status(url: str, token: str = "", *arguments: object, code: int = 0) -> str:
    """What `firstline-gateway status` prints."""
    environ = {**os.environ, "FIRSTLINE_TOKEN": token}
    done = await asyncio.to_thread(run_forked, "firstline_gateway", "status", url, *arguments, environ=environ)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
