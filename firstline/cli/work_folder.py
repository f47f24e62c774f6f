"""A temporary folder for one long command, deleted at its end, even after a signal."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from types import FrameType
from typing import TypeAlias

from firstline_core.errors import ConfigError
from firstline_core.storage.files import system_reason

_Action: TypeAlias = Callable[[int, FrameType | None], object] | int | None


@contextmanager
def work_folder() -> Iterator[Path]:
    """Yields the folder for all intermediate files; if the command is killed, its name tells where they came from.

    SIGTERM, and SIGHUP of a closed terminal, unwind the block as Ctrl-C does, and end the process with 128 and their
    number, as shells have it.

    Raises:
        ConfigError: there is no room for it, or no right.
    """
    before = {number: signal.getsignal(number) for number in _taken()}
    _set(dict.fromkeys(before, _end))
    try:
        with TemporaryDirectory(prefix="firstline-compress-") as folder:
            try:
                with _temporary_files_in(Path(folder) / "tmp"):
                    work = Path(folder) / "work"
                    work.mkdir()
                    yield work
            finally:
                _set(dict.fromkeys(before, signal.SIG_IGN))  # a second one would interrupt the tidying
    except OSError as error:
        raise ConfigError(
            f"Nothing was written: the work in {gettempdir()} failed: {system_reason(error)}; TMPDIR names another "
            "place for it."
        ) from error
    finally:
        _set(before)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Those of quantisers and of processes too, whose own tidying a signal interrupts."""
    folder.mkdir()
    variable, previous = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = previous
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


def _taken() -> list[signal.Signals]:
    """Returns the signals that would end the process at once; signals that nohup ignores stay ignored.

    None outside of the main thread, whose alone signals are: in a thread, the program that started it handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no hangup
    return [number for number in ends if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _set(actions: Mapping[signal.Signals, _Action]) -> None:
    for number, action in actions.items():
        signal.signal(number, action)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
