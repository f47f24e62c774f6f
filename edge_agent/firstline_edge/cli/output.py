"""The output of commands: results on stdout, the one sentence of a failure on stderr."""

from __future__ import annotations

import json
import sys


def say(text: str) -> None:
    """One line on stdout, at once: a program may read it from a pipe."""
    print(text, flush=True)  # noqa: T201


def say_json(value: object, *, indent: int | None = 2) -> None:
    """A value as JSON on stdout."""
    say(json.dumps(value, indent=indent))


def complain(sentence: str) -> None:
    """Why it could not be done, on stderr."""
    print(f"edge-agent: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
