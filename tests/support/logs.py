"""The log lines of a piece of code, as a collector would get them."""

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

from firstline_core.telemetry import logs


@contextlib.contextmanager
def captured_lines(level: str = "debug") -> Iterator[list[dict[str, Any]]]:
    """Logs as a process does, in JSON; the list is filled at the end, without logger and time."""
    root = logging.getLogger()
    handlers, before = root.handlers, root.level
    lines: list[dict[str, Any]] = []
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            logs.configure(level, "json")
            yield lines
            for handler in root.handlers:
                handler.flush()
    finally:
        root.handlers = handlers
        root.setLevel(before)
        lines += (json.loads(line) for line in stream.getvalue().splitlines())
        for line in lines:
            del line["logger"], line["timestamp"]
