"""The output of commands: results on stdout, the sentence of a failure on stderr. Needs no wheel."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from firstline_core.errors import CapacityError
from firstline_core.storage.files import system_reason


def print_line(text: str) -> None:
    """Writes one line to stdout at once, because a program may read it from a pipe."""
    print(text, flush=True)  # noqa: T201


def print_json(value: object) -> None:
    """Writes a value as JSON to stdout."""
    print_line(json.dumps(value, indent=2))


def show(arguments: argparse.Namespace, value: object, lines: Iterable[str]) -> None:
    """Writes the result of a command to stdout: a value as JSON, or lines, as `--output` says."""
    if arguments.output == "json":
        print_json(value)
    else:
        for line in lines:
            print_line(line)


def print_error(sentence: str) -> None:
    """Writes the reason of a failure to stderr."""
    print_progress(f"edge-agent: {sentence}")


def print_progress(text: str) -> None:
    """Writes one line to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def check_has_run(state_dir: Path) -> None:
    """Checks that an agent has used this state directory.

    Raises:
        CapacityError: the directory does not exist.
    """
    with explained_refusal(state_dir, "read"):
        if state_dir.exists():
            return
    raise CapacityError(
        f"No agent has run with {state_dir}, which does not exist; name the agent's settings with --config."
    )


@contextlib.contextmanager
def explained_refusal(path: Path, done: str) -> Iterator[None]:
    """Translates a refusal of the system into a sentence that says what to do about it.

    Args:
        path: of the files.
        done: the participle of the refused action, such as "read".

    Raises:
        CapacityError: the system refused.
    """
    try:
        yield
    except OSError as error:
        advice = "; run this as the user that the agent runs as" if isinstance(error, PermissionError) else ""
        raise CapacityError(f"{path} cannot be {done}: {system_reason(error)}{advice}.") from error
