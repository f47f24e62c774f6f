"""Text for people in messages, logs and tables."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """Returns a number with its noun: "1 device", "10,000 devices"; `things` is an irregular plural."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
