import asyncio
import contextlib
import errno
import io
import json
import logging
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog

from firstline_core.telemetry import logs

NAME = "firstline_gateway.requests"
FACTS = {"outcome": "ok", "model": "m", "ms": 1.5, "rows": 2, "note": "two words", "none": None, "text": "a\nb=\"'"}


@contextlib.contextmanager
def configured(form: Literal["text", "json"], level: str = "info") -> Iterator[io.StringIO]:
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        logs.configure(level, form)
        yield stream


@pytest.mark.parametrize(
    "facts",
    [FACTS, {"outcome": "ok", "ms": 1.5, "none": None, "path": Path("a b"), "empty": ""}, {"path": Path("plain")}],
)
def test_text_line_equals_that_of_structlogs_console_renderer(facts: dict[str, Any]) -> None:
    with configured("text") as stream:
        logs.logger(NAME).info("answered", **facts)
        try:
            _fail(b"")
        except ZeroDivisionError:
            logs.logger(NAME).exception("broken", **facts)
    text = stream.getvalue()
    timestamp = text.partition(" ")[0]
    render = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    event = {"event": "answered", "level": "info", "logger": NAME, "timestamp": timestamp, **facts}
    first, second, traceback = text.split("\n", 2)
    assert first == render(None, "info", event)
    assert second.partition(" ")[2].startswith(f"[error    ] broken [{NAME}] ")
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert traceback.endswith("ZeroDivisionError: division by zero\n")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), _Terminal()], ids=["file", "terminal"])
def test_text_of_callers_cannot_steer_a_terminal(stream: io.StringIO) -> None:
    with contextlib.redirect_stderr(stream):
        logs.configure()
        logs.logger(NAME).info("refused", model="\x1b]0;owned\x07", note="\x9b2J two")
        logging.getLogger("some.library").warning("said \x1b[2J\r")
        # Lines whose other parts are plain are rendered without a look at each field.
        logs.logger(NAME).info("refused", model="\x1b]0;owned\x07")
        logs.logger(NAME).info("said \x1b[2J", rows=2)
        try:
            raise ValueError("\x1b[2J")
        except ValueError:
            logs.logger(NAME).exception("broken")
            logs.logger(NAME).exception("broken", rows=2)
    text = re.sub(r"\x1b\[\d+m", "", stream.getvalue())  # structlog's own colours
    assert text.replace("\n", "").isprintable()
    for shown in (r"\x1b]0;owned\x07", r"\x9b2J two", r"said \x1b[2J\x0d", r"ValueError: \x1b[2J"):
        assert shown in text.replace("\\\\", "\\")


def test_context_facts_are_in_each_line() -> None:
    with configured("json") as stream:
        token = logs.FACTS.set(lambda: {"request_id": "r", "ms": 9.0})
        logs.logger(NAME).info("answered", ms=1.0)
        logs.FACTS.reset(token)
    line = json.loads(stream.getvalue())
    assert (line["request_id"], line["ms"]) == ("r", 1.0)


def test_lines_of_firstline_and_of_libraries_keep_their_order() -> None:
    with configured("text") as stream:
        logs.logger(NAME).info("first")
        logging.getLogger("some.library").warning("second")
        logs.logger(NAME).info("third")
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["first", "second", "third"]


async def test_lines_of_an_event_loop_are_written_together_soon() -> None:
    with configured("text") as stream:
        logs.logger(NAME).info("first")
        logs.logger(NAME).info("second")
        assert not stream.getvalue()
        await asyncio.sleep(0.1)
        assert len(stream.getvalue().splitlines()) == 2
        logs.logger(NAME).info("third")
        await asyncio.sleep(0.1)
        assert len(stream.getvalue().splitlines()) == 3


@pytest.mark.parametrize("name", ["firstline_gateway.requests", "some.library"])
async def test_a_warning_is_written_at_once(name: str) -> None:
    with configured("text") as stream:
        logs.logger(NAME).info("first")
        (logs.logger(name) if name == NAME else logging.getLogger(name)).warning("second")
        assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["first", "second"]


def test_lines_that_a_full_disk_refuses_fail_no_caller() -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    stream = Full()
    with contextlib.redirect_stderr(stream):
        logs.configure()
        logs.logger(NAME).error("lost")
        logging.getLogger(NAME).warning("lost")
        stream.full = False
        logs.logger(NAME).error("written")
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["written"]


def test_the_end_of_a_process_writes_the_last_lines() -> None:
    code = """
        import asyncio
        from firstline_core.telemetry import logs
        logs.configure()
        async def run():
            logs.logger("firstline_edge").info("last")
        asyncio.run(run())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "last [firstline_edge]" in done.stderr


@pytest.mark.parametrize("level", ["warning", "error"])
def test_lines_below_the_level_are_not_written(level: str) -> None:
    with configured("text", level) as stream:
        logs.logger(NAME).info("answered")
    assert not stream.getvalue()


def test_a_log_line_is_one_json_object_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(format="json")
    logs.logger("edge").info("answered", request_id="r-1", tier="edge", reason="confident", note="x" * 10_000)
    logging.getLogger("some.library").warning("said %s", "this")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["request_id"], ours["tier"], ours["level"]) == ("answered", "r-1", "edge", "info")
    assert len(ours["note"]) < 2100
    assert theirs["event"] == "said this"


def test_an_embedding_program_gets_no_lines_by_default() -> None:
    script = """
        import logging, sys
        from firstline_core.telemetry.logs import logger
        log = logger("firstline_edge.api.data_plane")
        log.warning("quiet", tier="edge")
        if len(sys.argv) > 1:
            logging.basicConfig(level="INFO", format="%(name)s %(message)s")
            log.info("answered", tier="edge")
    """
    for arguments, expected in ([], ""), (["ask"], "firstline_edge.api.data_plane answered tier=edge\n"):
        command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == ("", expected)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(
    form: Literal["text", "json"], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # structlog would show them where rich is installed: let it believe so.
    monkeypatch.setattr(structlog.dev, "default_exception_formatter", structlog.dev.rich_traceback, raising=False)
    logs.configure(format=form)
    try:
        _fail(b"the very " + b"payload")
    except ZeroDivisionError as error:
        logs.logger("edge").exception("broken")
        logging.getLogger("some.library").error("broken too", exc_info=error)
    printed = capsys.readouterr().err
    assert printed.count("ZeroDivisionError") == 2
    assert "the very payload" not in printed


def _fail(content: bytes) -> float:
    return len(content) / 0


class _Silent:
    def __repr__(self) -> str:
        raise ValueError("no text")


class _Logging:
    def __repr__(self) -> str:
        logging.getLogger("some.library").warning("during the text")
        return "odd"


@pytest.mark.timeout(10)
def test_a_value_that_logs_during_its_text_blocks_nothing() -> None:
    with configured("text") as stream:
        logs.logger(NAME).info("answered", value=_Logging())
    assert "during the text [some.library]" in stream.getvalue()
    assert f"answered [{NAME}] value=odd" in stream.getvalue()


def test_a_record_whose_arguments_do_not_fit_loses_no_other_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("some.library").warning("%d", "no number")
    logging.getLogger("some.library").warning("after")
    assert "after [some.library]" in capsys.readouterr().err


def _deep() -> object:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("\udc80", id="no UTF-8"),
        pytest.param({5: "a"}, id="keys that are not text"),
        pytest.param(1 << 70, id="over 64 bits"),
        pytest.param(_Silent(), id="no repr"),
        pytest.param(_deep(), id="deep"),
    ],
)
def test_a_value_without_a_text_loses_no_line(form: Literal["text", "json"], value: object) -> None:
    with configured(form) as stream:
        log = logs.logger(NAME)

        async def three_lines() -> None:
            log.info("before")
            log.info("odd", path=value, ms=1.5)
            log.warning("after")

        asyncio.run(three_lines())
        try:
            _fail(b"")
        except ZeroDivisionError:
            log.exception("broken", path=value)
    text = stream.getvalue()
    for event in ("before", "odd", "after", "broken"):
        assert event in text
    if form == "json":
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["event"] for line in lines] == ["before", "odd", "after", "broken"]
        assert "path" in str(lines[1])
        assert "1.5" in str(lines[1])
        assert "ZeroDivisionError" in str(lines[3])
