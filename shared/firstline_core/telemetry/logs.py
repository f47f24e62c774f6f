"""Logs: one line per event to stderr, as text for people or as JSON for collectors, by structlog.

Records of libraries become the same lines as the events of Firstline's own loggers.

Lines below warning that an event loop logs are collected for a moment and written together, because a system call for
each request costs as much as a small model. The service manager bounds what is kept (journald, Docker's log driver);
the length of a line is bounded here. Until a process calls `configure`, loggers hand their events to the standard
library's loggers, which have no handler: a program that embeds an agent or a client sees nothing unless it asks, and
its own structlog settings are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, TextIO

import orjson
import structlog
from structlog.stdlib import BoundLogger
from structlog.typing import EventDict, Processor, WrappedLogger

from firstline_core.telemetry.wording import escaped

_VALUE_LIMIT_CHARACTERS = 2000
_WRITE_DELAY_S = 0.01
_COLLECTED_LEVELS = ("debug", "info")  # a process that crashes has written its warnings and errors
# Libraries with a line at `info` for each request or each start, of which Firstline's own lines report what matters.
_VERBOSE_LIBRARIES = ("alembic", "httpx", "tuf")
_PACKAGES = ("firstline_core", "firstline_edge", "firstline_gateway", "firstline")

FACTS: ContextVar[Callable[[], Mapping[str, object]] | None] = ContextVar("facts", default=None)
"""Returns fields for every line of this context. It is called only when a line is written."""

_LEVELS = {name.lower(): level for name, level in logging.getLevelNamesMapping().items()} | {"exception": logging.ERROR}

for _package in _PACKAGES:
    logging.getLogger(_package).addHandler(logging.NullHandler())


def _limit_values(event: EventDict) -> EventDict:
    """Cuts long values, so that no input can write an endless line."""
    for key, value in event.items():
        if isinstance(value, str) and len(value) > _VALUE_LIMIT_CHARACTERS:
            event[key] = value[:_VALUE_LIMIT_CHARACTERS] + "..."
    return event


def _ascii(value: object) -> str:
    """Returns the text of any value, which every encoding and format accepts."""
    try:
        return value if isinstance(value, str) and value.isascii() else ascii(value)
    except Exception:  # noqa: BLE001 (its `__repr__` raises)
        return f"a {type(value).__name__} that cannot be shown"


class _Handler(logging.Handler):
    """Collects the lines of a configured process, and renders them when it writes them; safe for threads.

    Args:
        file: takes the text at each flush, in the order of the lines.
        render: returns the text of an event.
    """

    def __init__(self, file: TextIO, render: Processor) -> None:
        super().__init__()
        self._file = file
        self._render = render
        self._lock: Any = self.lock  # may be held already: a `__repr__` or the garbage collector may log
        self._lines: list[EventDict] = []
        self._flush_by_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record of a library."""
        try:
            event = _line(record.getMessage(), record.levelname.lower(), record.name, {})
            if record.exc_info:
                event["exc_info"] = record.exc_info
            if record.stack_info:
                event["stack"] = record.stack_info
            self.write(event)
        except Exception:  # noqa: BLE001 (e.g. the arguments do not fit the text)
            self.handleError(record)

    def write(self, event: EventDict) -> None:
        """Writes an event; below warning it may wait for others."""
        if "exc_info" in event:  # whose traceback is not limited
            event = structlog.processors.format_exc_info(None, "", _limit_values(event))
        with self._lock:
            self._lines.append(event)
        if event["level"] not in _COLLECTED_LEVELS:
            self.flush()
        elif time.monotonic() >= self._flush_by_s:  # if that loop has ended, the next line or the exit writes the text
            self._flush_soon()

    def flush(self) -> None:
        """Writes the collected lines now.

        Lines that a full disk or a closed pipe refuses are lost, because their callers must continue: a thread that
        stores, for example.
        """
        with self._lock, suppress(OSError):
            lines, self._lines = self._lines, []
            self._flush_by_s = 0.0
            if lines:
                self._file.write("".join(map(self._text_of, lines)))
            self._file.flush()

    def _text_of(self, event: EventDict) -> str:
        """Returns the text of an event, or of a substitute: a value must not lose the other lines."""
        try:
            return self._rendered(event)
        except Exception:  # noqa: BLE001 (whatever the `__repr__` of a value raises)
            substitute = {key: _ascii(event.get(key)) for key in ("timestamp", "level", "event", "logger")}
            fields = {key: _ascii(value) for key, value in event.items() if key not in substitute}
            return self._rendered({**substitute, "fields": str(fields)})

    def _rendered(self, event: EventDict) -> str:
        """Returns the text of an event; each value is limited, but for a traceback."""
        text = self._render(None, event["level"], dict(event))
        if len(text) > _VALUE_LIMIT_CHARACTERS and "exception" not in event:  # perhaps because of one value
            text = self._render(None, event["level"], _limit_values(event))
        return f"{text!s}\n"

    def _flush_soon(self) -> None:
        """Writes the collected lines within `_WRITE_DELAY_S`; at once outside an event loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        self._flush_by_s = time.monotonic() + _WRITE_DELAY_S
        loop.call_later(_WRITE_DELAY_S, self.flush)


class _Logger(BoundLogger):
    """structlog's logger, which makes a line in one step, because each request has a line."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *event_args: str, **fields: Any) -> Any:
        """Writes a line; structlog leaves this method to classes like this one."""
        logger = self._logger
        if not logger.isEnabledFor(_LEVELS[method_name]):
            return
        level = "error" if method_name == "exception" else method_name
        line = _line(event, level, logger.name, {**self._context, **fields})
        if event_args:
            line["positional_args"] = event_args
        _write(logger, method_name, line)


def _line(event: str | None, level: str, logger_name: str, fields: Mapping[str, object]) -> EventDict:
    """Returns the fields of a line: the facts of this context, its own fields, and those that every line has."""
    read = FACTS.get()
    facts = read() if read is not None else {}
    return {**facts, **fields, "event": event, "level": level, "logger": logger_name, "timestamp": _timestamp()}


@lru_cache(1)
def _seconds_text(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _timestamp() -> str:
    """Returns the present as in RFC 3339."""
    seconds, micros = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_seconds_text(seconds)}.{micros:06d}Z"


def _write(logger: WrappedLogger, method: str, event: EventDict) -> None:
    """Writes an event in a configured process; otherwise hands a sentence to the standard library's logger."""
    for handler in logging.root.handlers:
        if isinstance(handler, _Handler):
            handler.write(event)
            return
    event = _limit_values(event)
    keywords: Mapping[str, Any] = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    text = str(event.pop("event", ""))
    facts = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("level", "logger", "timestamp"))
    getattr(logger, method)(f"{text} {facts}".rstrip(), **keywords)


_BELOW = ("stack", "exception")  # fields with lines of their own
_HEAD = "%(timestamp)s [%(level)-9s] %(event)s [%(logger)s]"
_NOT_FACTS = frozenset({"timestamp", "level", "event", "logger", *_BELOW})
_needs_quotes = re.compile(r"[\s='\"]").search


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=repr).decode()


def _render_text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Renders as structlog's `ConsoleRenderer` without colours, in a fraction of its time: each request has a line."""
    head = escaped(_HEAD % event)
    facts = " ".join([f"{name}={_fact(event[name])}" for name in _names_of_facts(tuple(event))])
    text = f"{head} {facts}" if facts else head
    for name in _BELOW:
        if event.get(name):
            text += f"\n{escaped(event[name])}"
    return text


@lru_cache(256)
def _names_of_facts(fields: tuple[str, ...]) -> list[str]:
    """Returns the names of a line's facts in their order."""
    return sorted({*fields} - _NOT_FACTS)


def _fact(value: object) -> str:
    """Returns the text of a value, in quotes if it has white space, quotes or an equals sign."""
    if not isinstance(value, str):
        return repr(value)
    text = escaped(value)
    return repr(text) if _needs_quotes(text) else text


def configure(level: str = "info", format: Literal["text", "json"] = "text") -> None:  # noqa: A002
    """Sets up logging for this process, for Firstline's lines and for those of libraries.

    Args:
        level: debug, info, warning or error.
        format: text for a terminal, json for a collector.
    """
    render: Processor = _render_json if format == "json" else _render_text
    if format == "text" and sys.stderr.isatty():
        # A plain traceback: with local variables in it it would show payloads.
        console = structlog.dev.ConsoleRenderer(pad_event_to=0, exception_formatter=structlog.dev.plain_traceback)

        def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
            # Its control characters are text, as in `_render_text`.
            shown = {name: escaped(value) if isinstance(value, str) else value for name, value in event.items()}
            return console(logger, method, shown)

    root = logging.getLogger()
    root.handlers = [_Handler(sys.stderr, render)]
    root.setLevel(level.upper())
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def logger(name: str) -> BoundLogger:
    """Returns a logger for calls such as `log.info("answered", request_id=..., tier=...)`.

    The values of lines below warning are rendered when the lines are written, so they must not change.
    """
    return _Logger(logging.getLogger(name), processors=(), context={})
