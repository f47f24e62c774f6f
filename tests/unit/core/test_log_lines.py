from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from firstline_core.telemetry import logs

NAME = "firstline_gateway.requests"
FACTS = {"outcome": "ok", "model": "m", "ms": 1.5, "rows": 2}


@contextlib.contextmanager
def configured(form: Literal["text", "json"], level: str = "info") -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, before = root.handlers, root.level
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            logs.configure(level, form)
            yield stream
    finally:
        root.handlers = handlers
        root.setLevel(before)


def test_a_line_of_text_is_as_structlog_writes_it() -> None:
    with configured("text") as stream:
        logs.logger(NAME).info("answered", **FACTS)
        logs.line(NAME, "answered", **FACTS)
    slow, fast = stream.getvalue().splitlines()
    assert fast.partition(" ")[2] == slow.partition(" ")[2]
    assert len(fast) == len(slow)


def test_a_line_of_json_says_the_same() -> None:
    with configured("json") as stream:
        logs.logger(NAME).info("answered", **FACTS)
        logs.line(NAME, "answered", **FACTS)
    slow, fast = map(json.loads, stream.getvalue().splitlines())
    assert slow.pop("timestamp") <= fast.pop("timestamp")
    assert fast == slow


async def test_lines_of_one_moment_are_written_together_and_in_their_order() -> None:
    with configured("text") as stream:
        logs.line(NAME, "first")
        assert not stream.getvalue()
        logs.logger(NAME).info("second")
        logs.line(NAME, "third")
        async with asyncio.timeout(5):
            while "third" not in stream.getvalue():  # noqa: ASYNC110 (a stream tells nobody)
                await asyncio.sleep(0.001)
        events = [line.split()[3] for line in stream.getvalue().splitlines()]
    assert events == ["first", "second", "third"]


async def test_what_a_context_says_is_in_each_of_its_lines() -> None:
    with configured("json") as stream:
        token = logs.FACTS.set(lambda: {"request_id": "r", "ms": 9.0})
        logs.line(NAME, "answered", ms=1.0)
        logs.logger(NAME).info("answered", ms=1.0)
        logs.FACTS.reset(token)
        await asyncio.sleep(0)
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["request_id"], line["ms"]) for line in lines] == [("r", 1.0)] * 2


@pytest.mark.parametrize("level", ["warning", "error"])
def test_nothing_is_written_below_the_level(level: str) -> None:
    with configured("text", level) as stream:
        logs.line(NAME, "answered")
    assert not stream.getvalue()
