"""Logs: one line a fact, to stderr; as text for people, as JSON when asked.

Whoever runs the process bounds what is kept (journald, Docker's log driver); a line is bounded here.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.stdlib import BoundLogger
from structlog.typing import EventDict, WrappedLogger

_VALUE_LIMIT_CHARACTERS = 2000


def _bound(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Cuts long values, so that no input can write an endless line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LIMIT_CHARACTERS:
            event[key] = value[:_VALUE_LIMIT_CHARACTERS] + "..."
    return event


def configure(level: str = "info", format: Literal["text", "json"] = "text") -> None:  # noqa: A002
    """Sets up logging for this process, for our lines and for those of the libraries.

    Args:
        level: debug, info, warning or error.
        format: text for a terminal, json for a collector.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _bound,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # httpx says one line a request at info; ours says more.
    logging.getLogger("httpx").setLevel(max(logging.WARNING, root.level))


def logger(name: str) -> BoundLogger:
    """A logger whose calls read `log.info("answered", request_id=..., tier=...)`."""
    found: BoundLogger = structlog.stdlib.get_logger(name)
    return found
