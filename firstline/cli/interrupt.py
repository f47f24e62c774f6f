"""Ctrl-C during a command: it always ends with exit code 130, whatever the command does when the signal arrives."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT


class _Interrupt:
    """Raises KeyboardInterrupt, and remembers it.

    Python drops the exception if it is raised in a callback of the interpreter, such as those of weak references.
    """

    def __init__(self) -> None:
        self.received = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
        raise KeyboardInterrupt


def start_command_line() -> None:
    """Lets SIGINT end this process at once until `start_command`, because an import loses or mistakes an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it, as nohup does
        signal.signal(signal.SIGINT, _end)


def start_command() -> None:
    """Lets SIGINT raise KeyboardInterrupt from now on, in a process that called `start_command_line`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _Interrupt())


def pause(duration_s: float) -> None:
    """Waits between two looks at something.

    Raises:
        KeyboardInterrupt: SIGINT arrives, or has arrived since `start_command`.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Interrupt) and handler.received:
        raise KeyboardInterrupt
    time.sleep(duration_s)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
