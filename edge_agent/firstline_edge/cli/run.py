"""`edge-agent run`."""

from __future__ import annotations

import argparse
import asyncio
import errno

from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.telemetry import logs
from firstline_edge.api.server import serve
from firstline_edge.cli.output import complain, say, say_json
from firstline_edge.cli.parser import FAILED, OK, USAGE
from firstline_edge.settings import load


def command(arguments: argparse.Namespace) -> int:
    """Answers requests until SIGTERM or SIGINT."""

    def ready(url: str) -> None:
        if arguments.output == "json":
            say_json({"event": "ready", "url": url}, indent=None)
        else:
            say(f"listening on {url}")

    try:
        settings = load(arguments.config, overrides={"api.port": arguments.port})
        logs.configure(settings.log.level, settings.log.format)
        asyncio.run(serve(settings, ready))
    except ConfigError as error:
        complain(error.message)
        return USAGE
    except FirstlineError as error:
        complain(error.message)
        return FAILED
    except OSError as error:
        complain(_address_problem(error, f"{settings.api.host}:{settings.api.port}"))
        return FAILED
    return OK


def _address_problem(error: OSError, address: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use by another program; stop it, or choose a port with --port (0 lets the system)."
    if error.errno == errno.EACCES:
        return f"{address} may not be used by this user; choose a port above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this machine; correct api.host."
    return f"The agent stopped: {error}."
