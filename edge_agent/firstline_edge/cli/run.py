"""`edge-agent run`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from firstline_core.command_line import EXIT_FAILED, announce, end_now, has_working_thread
from firstline_core.telemetry import logs, tracing
from firstline_edge.app import run_agent
from firstline_edge.cli.output import print_error
from firstline_edge.cli.parser import OK
from firstline_edge.settings.load import load, load_or_last_good, naming_sources, store_last_good

log = logs.logger(__name__)


def command(arguments: argparse.Namespace) -> int:
    """Answers requests until SIGTERM or SIGINT; SIGHUP reloads the configuration."""
    overrides = dict(arguments.overrides)
    if arguments.port is not None:
        overrides["api.port"] = arguments.port
    if arguments.socket is not None:
        overrides["api.socket"] = str(arguments.socket.absolute())
    try:
        settings, configuration, problem = load_or_last_good(arguments.config, overrides)
        logs.configure(settings.log.level, settings.log.format)
        if problem:
            log.error("configuration invalid", why=problem)
        problems = {arguments.config: problem} if problem else {}
        found = settings.tracing
        tracing.configure("firstline-edge", found.endpoint, found.sample, instance=settings.device_id)

        def ready(url: str) -> None:
            if configuration is not None and not problem:
                store_last_good(settings.state_dir, configuration)
            event = json.dumps({"event": "ready", "url": url})
            announce(event if arguments.output == "json" else f"listening on {url}")

        try:
            with naming_sources(arguments.config, overrides, configuration, is_last_good=bool(problem)):
                run_to_end(
                    run_agent(settings, ready, partial(load, arguments.config, overrides=overrides), problems=problems)
                )
        finally:
            tracing.close()
    except OSError as error:
        print_error(f"The agent stopped: {error}; `edge-agent doctor` says what this device lacks.")
        return EXIT_FAILED
    return OK


def run_to_end(agent: Coroutine[Any, Any, None]) -> None:
    """Runs the agent to its end, which does not wait for a model that still runs or loads in a thread."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(thread_name_prefix="agent") as threads:
        runner.get_loop().set_default_executor(threads)
        runner.run(agent)
        threads.shutdown(wait=False, cancel_futures=True)
        if has_working_thread():
            tracing.close()
            end_now(OK)
