"""Logs: one line a fact, to stderr; as text for people, as JSON when asked.

Whoever runs the process bounds what is kept (journald, Docker's log driver); a line is bounded here. Until a process
calls `configure` these are plain standard-library loggers without a handler: a program that uses an agent or a client
within itself hears nothing unless it asks, and its own structlog settings are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
import structlog
from structlog.stdlib import BoundLogger
from structlog.typing import EventDict, Processor, WrappedLogger

_VALUE_LIMIT_CHARACTERS = 2000
# At info httpx has a line about each request, and alembic some about each start, of which ours tell what matters.
_TALKATIVE = ("alembic", "httpx", "tuf")
_PACKAGES = ("firstline_core", "firstline_edge", "firstline_gateway", "firstline")

FACTS: ContextVar[Callable[[], Mapping[str, object]] | None] = ContextVar("facts", default=None)
"""What every line of this context says too, asked when one is written: most requests write none."""

for _package in _PACKAGES:
    logging.getLogger(_package).addHandler(logging.NullHandler())


def _bound(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Cuts long values, so that no input can write an endless line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LIMIT_CHARACTERS:
            event[key] = value[:_VALUE_LIMIT_CHARACTERS] + "..."
    return event


def _add_facts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Adds `FACTS`, which a line's own go before."""
    read = FACTS.get()
    return event if read is None else {**read(), **event}


def _hand_over(logger: WrappedLogger, method: str, event: EventDict) -> tuple[Any, ...]:
    """To our own handler as it is; to anybody else's as a sentence with `key=value`."""
    if any(isinstance(handler, _Handler) for handler in logging.getLogger().handlers):
        return structlog.stdlib.ProcessorFormatter.wrap_for_formatter(logger, method, event)
    keywords: Mapping[str, Any] = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    text = str(event.pop("event", ""))
    facts = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("level", "logger", "timestamp"))
    return (f"{text} {facts}".rstrip(),), keywords


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    _add_facts,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    _bound,
]
_PROCESSORS: list[Processor] = [structlog.stdlib.filter_by_level, *_SHARED, _hand_over]


# To write one takes as long as a small model does.
_TOGETHER_S, _MOST_LINES = 0.02, 512


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours, on the root logger; lines that come within `_TOGETHER_S` on an event loop are written together.

    Args:
        render: what a line's facts become; None where only structlog can (colours).
    """

    def __init__(self, render: Callable[[dict[str, Any]], str] | None) -> None:
        super().__init__(sys.stderr)
        self.render = render
        self._lines: list[tuple[str, dict[str, Any], float]] = []

    def add(self, found: dict[str, Any], template: str = "") -> None:
        """Writes a line within `_TOGETHER_S`, and before any that comes another way; without a loop now.

        Args:
            found: its facts, but for the time.
            template: that they are put into; "" where `render` has to.
        """
        self._lines.append((template, found, time.time()))
        if len(self._lines) == 1:
            try:
                asyncio.get_running_loop().call_later(_TOGETHER_S, self.flush)
            except RuntimeError:
                self.flush()
        elif len(self._lines) >= _MOST_LINES:
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines:
            self.flush()  # what was said before stands before it
        super().emit(record)

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines and self.render is not None:
            said, second = [], -1
            for template, found, at_s in lines:
                if int(at_s) != second:
                    second = int(at_s)
                    date = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
                found["timestamp"] = f"{date}.{int((at_s - second) * 1e6):06d}Z"
                said.append(template % found if template else self.render(found))
            with self.lock or contextlib.nullcontext():
                self.stream.write("".join(said))
        super().flush()


def _ours() -> _Handler | None:
    """Our handler, where lines go there alone and need no colours."""
    handlers = logging.root.handlers
    if len(handlers) == 1 and isinstance(handlers[0], _Handler) and handlers[0].render is not None:
        return handlers[0]
    return None


def line(name: str, event: str, **facts: object) -> None:
    """As `logger(name).info(event, **facts)`, at a tenth of its price: for what has a line for each request.

    Args:
        name: of the logger.
        event: what happened; text that needs no escapes, as all that follows.
        facts: beside those of the context.
    """
    standard = logging.getLogger(name)
    if not standard.isEnabledFor(logging.INFO):
        return
    handler = _ours()
    if handler is None:
        logger(name).info(event, **facts)
        return
    read = FACTS.get()
    handler.add(_as_line(name, event, facts if read is None else {**read(), **facts}))


def _as_line(name: str, event: str, facts: Mapping[str, object]) -> dict[str, Any]:
    return {**facts, "event": event, "level": "info", "logger": name}


class LineForm:
    """As `line` again and again, where only some facts change: rendered once, with places for those.

    Args:
        name: of the logger.
        event: what happened.
        facts: that stay the same.
        changing: those that do not, each with any value of its kind: a number, or text that needs no escapes.
    """

    def __init__(self, name: str, event: str, facts: Mapping[str, object], changing: Mapping[str, object]) -> None:
        self._name, self._event, self._facts = name, event, facts
        self._changing = {each: type(value) for each, value in changing.items()}
        self._standard = logging.getLogger(name)
        self._templates: dict[Callable[[dict[str, Any]], str], str] = {}

    def write(self, values: dict[str, Any]) -> None:
        """Writes a line with these values of what changes; the dictionary is the line's from now on."""
        if not self._standard.isEnabledFor(logging.INFO):
            return
        handler = _ours()
        if handler is None or handler.render is None:
            logger(self._name).info(self._event, **self._facts, **values)
            return
        template = self._templates.get(handler.render)
        if template is None:
            template = self._templates[handler.render] = self._made(handler.render)
        handler.add(values, template)

    def _made(self, render: Callable[[dict[str, Any]], str]) -> str:
        # Nobody can guess the marks, so nothing else looks like one. A number's is one that all write alike.
        marks: dict[str, object] = {
            each: secrets.token_hex(16) if kind is str else secrets.randbits(40) + 0.125
            for each, kind in (*self._changing.items(), ("timestamp", str))
        }
        template = render(_as_line(self._name, self._event, self._facts) | marks).replace("%", "%%")
        for each, mark in marks.items():
            template = template.replace(str(mark), f"%({each})s")
        return template


def _as_json(found: dict[str, Any]) -> str:
    return orjson.dumps(found).decode() + "\n"


def _as_text(found: dict[str, Any]) -> str:
    """As structlog's console renderer has it, without colours."""
    event, level, name, timestamp = (found.pop(key) for key in ("event", "level", "logger", "timestamp"))
    facts = " ".join([f"{key}={found[key]}" for key in sorted(found)])
    return f"{timestamp} [{level:<9}] {event} [{name}] {facts}\n"


def configure(level: str = "info", format: Literal["text", "json"] = "text") -> None:  # noqa: A002
    """Sets up logging for this process, for our lines and for those of the libraries.

    Args:
        level: debug, info, warning or error.
        format: text for a terminal, json for a collector.
    """
    colours = format == "text" and sys.stderr.isatty()
    # Tracebacks are plain: with local variables in them they would hold payloads.
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=colours, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    )
    handler = _Handler(None if colours else _as_json if format == "json" else _as_text)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
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
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def logger(name: str) -> BoundLogger:
    """A logger whose calls read `log.info("answered", request_id=..., tier=...)`."""
    found: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=_PROCESSORS,
        wrapper_class=BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return found
