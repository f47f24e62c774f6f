"""Command lines: output that cannot be written, signals, and for both tiers parsers of nouns and verbs."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from types import FrameType
from typing import Any, NoReturn, TextIO, TypeAlias

from firstline_core.errors import ConfigError, FirstlineError, did_you_mean, missing_package

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""The place of the commands of a program, or of a noun."""
_CHOICES = re.compile(r"(.*invalid choice: '([^']*)') \(choose from (.*)\)", re.DOTALL)

_NUMBER = re.compile(r"(.*)invalid (int|float) value: (.*)", re.DOTALL)
_REQUIRED = re.compile(r"the following arguments are required: (.*)|one of the arguments (.*) is required", re.DOTALL)
_VALUELESS = re.compile(r"argument (.*): expected (?:one|at least one) argument")
EXIT_FAILED, EXIT_USAGE = 1, 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
_IMPORTING = "<frozen importlib._bootstrap>"
"""Python's name for the file of its import system."""
_THREAD_END_S = 0.5  # for a thread that has no work left
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_with_output(run: Callable[[], int], report: Callable[[str], object]) -> int:
    """Runs a command, and writes all its output before it returns.

    If stdout is closed, the output is discarded; likewise if its reader has enough, as `| head` does. If stderr is
    closed, its lines are discarded, and no file of the command takes its place. Lines that stderr refuses are
    discarded too: the exit code stays that of the command.

    Args:
        run: the command; returns its exit code.
        report: gets a sentence if a disk refuses the output.

    Returns:
        The exit code; 1 if a disk refused.
    """
    sys.stderr = _text_file(sys.stderr, _Stderr, line_buffering=True)
    sys.stdout = _text_file(sys.stdout, _Stdout, line_buffering=sys.stdout is not None and sys.stdout.isatty())
    try:
        code = run()
        sys.stdout.flush()
        return code
    except _OutputError as refusal:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if refusal.error.errno == errno.EPIPE:
            return 0
        report(f"The output cannot be written: {refusal.error.strerror}. Free some space, or write it elsewhere.")
        return 1


def announce(line: str) -> None:
    """Writes the ready line of a server to stdout at once; a full disk costs the line, not the server."""
    try:
        print(line, flush=True)  # noqa: T201
    except _OutputError as refusal:
        if refusal.error.errno == errno.EPIPE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


class _OutputError(Exception):
    """Stdout is closed or full; not an OSError, which a command might handle as one of its own files."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _Stdout(io.FileIO):
    """Tells failures of stdout from those of other files and connections."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, *_FULL):
                raise
            raise _OutputError(error) from error


class _Stderr(io.FileIO):
    """Discards what a full disk, or a reader that has left, refuses."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _text_file(stream: TextIO | None, raw: type[io.FileIO], *, line_buffering: bool) -> TextIO:
    """Returns a stream that writes to the descriptor of another through `raw`.

    Without another stream, it discards what is written. A stream without a descriptor is returned as it is.
    """
    if stream is None:
        return open(os.devnull, "w")  # noqa: PTH123 (until this process ends)
    try:
        file = raw(stream.fileno(), "w", closefd=False)
    except io.UnsupportedOperation:  # in a test, it may be memory
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",  # names of files need not be UTF-8
        line_buffering=line_buffering,
    )


def has_working_thread() -> bool:
    """Returns whether a thread is at work, for which the interpreter's own end would wait; none can be made to stop."""
    others = [each for each in threading.enumerate() if not each.daemon and each is not threading.current_thread()]
    for each in others:
        each.join(_THREAD_END_S)
    return any(each.is_alive() for each in others)


def end_now(code: int) -> NoReturn:
    """Ends the process with its output written, and nothing else closed."""
    sys.stdout.flush()
    logging.shutdown()  # writes the last lines
    os._exit(code)


def run_program(run: Callable[[], int], report: Callable[[str], object], *, name: str, extra: str, serves: bool) -> int:
    """Runs a command of the agent or of the gateway, and reports its failure in one sentence.

    Args:
        run: the command; returns its exit code.
        report: gets the sentence.
        name: of the command as it is typed, for the error about a package that is not installed.
        extra: of the distribution, which installs the packages of the program.
        serves: whether the command is a server: a signal ends its start at once, with exit code 0.

    Returns:
        The exit code: after a failure 1, or 2 if the command line, the configuration or the installation is wrong.
    """
    if serves:
        signal.signal(signal.SIGHUP, _ignore)  # until the server takes over: a start reads the latest configuration
    try:
        with ended_by_signals() if serves else interruptible():
            return run()
    except ModuleNotFoundError as error:
        report(missing_package(error, name, extra).message)
        return EXIT_USAGE
    except FirstlineError as error:
        report(error.message)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignores a signal in this process only: started programs do not inherit a handler, as they would `SIG_IGN`."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGINT end the start of a server at once, until the server handles them itself.

    Python calls a handler in the main thread only, which may load a model for minutes. So a thread waits for the bytes
    that the interpreter writes for each signal; the server's event loop takes them over with the signals.
    """
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGINT)}
    written, read = socket.socketpair()
    written.setblocking(False)
    earlier = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_on_byte, args=(read, bytes(before)), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        written.close()  # which ends the thread
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_on_byte(read: socket.socket, ending: bytes) -> None:
    """Ends the process if it gets one of the signals `ending`, until the other end is closed."""
    with read:
        while found := read.recv(1):
            if found in ending:
                _end(found[0], None)


def _end(_number: int, _frame: FrameType | None) -> None:
    """Ends a start at once: every file survives a kill, and no answer was given yet.

    An exception would not do: raised while a C extension is imported it is lost, and the half-imported module stays.
    """
    os._exit(0)


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets SIGINT end this process at once during an import, and raise KeyboardInterrupt at any other moment.

    An exception would not do: raised while a C extension is imported it is lost, or crashes the interpreter.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # the caller ignores it, as nohup does
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(EXIT_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


class Parser(argparse.ArgumentParser):
    """A parser that names the command or the option that a mistyped one probably means.

    Args:
        example: a complete command line for the end of the help; "" for none.
        epilog: more at the end of the help.
        **settings: see `argparse.ArgumentParser`.
    """

    def __init__(self, *, example: str = "", epilog: str | None = None, **settings: Any) -> None:
        shown = f"example:\n  {example}\n" if example else ""
        end = "\n".join(filter(None, (shown, epilog)))
        super().__init__(epilog=end, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self.example = example

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reports an unknown option here, where the options are known, and before an argument that is missing."""
        words = list(takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args))
        own = words if self.example else takewhile(lambda word: word.startswith("-"), words)  # others are a command's
        options = re.findall("--[a-z-]+", self.format_help())
        for option in (word.partition("=")[0] for word in own if word.startswith("--")):
            if " " not in option and not any(each.startswith(option) for each in options):
                end = did_you_mean(option, options)
                self.error(f"unknown option {option}{end if end != '.' else f'; {self._help} lists them.'}")
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.example:
            if unknown[0].startswith("-"):
                self.error(f"unknown option {unknown[0]}; {self._help} lists them.")
            self.error(f"unexpected argument {unknown[0]!r}; delete it.")
        return found, unknown

    @property
    def _help(self) -> str:
        return f"`{self.prog} -h`"

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2, and a sentence about what to type instead."""
        if choices := _CHOICES.fullmatch(message):
            names = re.findall(r"[\w-]+", choices[3])
            end = did_you_mean(choices[2], names)
            message = choices[1] + (f"; use one of {', '.join(names)}." if end == "." else end)
        elif number := _NUMBER.fullmatch(message):
            message = f"{number[1]}{number[3]} is not a {'whole ' if number[2] == 'int' else ''}number."
        elif missing := _REQUIRED.fullmatch(message):
            argument = missing[1] or missing[2].replace(" ", " or ")
            is_command = argument == "COMMAND"
            fault = "name a command" if is_command else f"{argument} is missing"
            message = f"{fault}; {self._help} {'lists them' if is_command else 'describes it'}."
        elif valueless := _VALUELESS.fullmatch(message):
            message = f"{valueless[1]} has no value; write one after it."
        super().error(message)


def add_group(commands: Commands, noun: str, purpose: str) -> Commands:
    """Adds the noun of several commands, and returns the place of their verbs."""
    group = commands.add_parser(noun, help=purpose, description=sentence(purpose))
    return group.add_subparsers(required=True, metavar="COMMAND")


def add_command(
    commands: Commands,
    name: str,
    purpose: str,
    *,
    example: str,
    epilog: str = "",
    forms: Sequence[str] = ("text", "json"),
) -> Parser:
    """Adds a command with the option `--output`.

    Args:
        commands: of the program, or of a noun.
        name: of the command.
        purpose: of the command, in the imperative, without capital and full stop.
        example: a complete command line.
        epilog: more at the end of the help.
        forms: of the output; the first is the default.
    """
    command = commands.add_parser(name, help=purpose, description=sentence(purpose), example=example, epilog=epilog)
    command.add_argument("-o", "--output", choices=forms, default=forms[0], help="format of the output on stdout")
    return command


def sentence(purpose: str) -> str:
    """Returns a purpose with capital and full stop."""
    return f"{purpose[0].upper()}{purpose[1:]}."
