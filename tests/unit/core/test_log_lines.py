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


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_in_a_known_form_says_what_one_that_is_made_anew_says(form: Literal["text", "json"]) -> None:
    changing = {"ms": 0.125, "request_id": "01890a5d-ac96-774b-bcce-b302099a8057"}
    facts = {"model": 'a%s"b', "rows": 2, "principal": "application:ü"}
    known = logs.LineForm(NAME, "answered", facts, {"ms": 1.0, "request_id": ""})
    with configured(form) as stream:
        for _ in range(2):
            logs.line(NAME, "answered", **facts, **changing)
            known.write(dict(changing))
    lines = stream.getvalue().splitlines()
    if form == "text":
        assert len({line.partition(" ")[2] for line in lines}) == 1
    else:
        said = [json.loads(line) for line in lines]
        assert all(each.pop("timestamp").endswith("Z") for each in said)
        assert said == [said[0]] * 4


def test_a_known_form_follows_the_settings() -> None:
    known = logs.LineForm(NAME, "answered", {"rows": 1}, {"ms": 1.0})
    for form, begins in (("text", "2"), ("json", "{")):
        with configured(form) as stream:  # type: ignore[arg-type]
            known.write({"ms": 1.0})
        assert stream.getvalue().startswith(begins)
    with configured("text", "warning") as stream:
        known.write({"ms": 1.0})
    assert not stream.getvalue()


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
