"""The workstation's commands against a gateway in this process."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner, Result

from firstline.cli.app import app


async def firstline(url: str, token: str, *arguments: object, code: int = 0, **environment: str) -> Result:
    """Runs `firstline ARGUMENTS` in a thread, as the gateway answers on this one; fails on another exit code."""
    environment |= {"FIRSTLINE_GATEWAY_URL": url, "FIRSTLINE_TOKEN": token}
    result = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, arguments)], env=environment)
    assert result.exit_code == code, result.output
    return result
