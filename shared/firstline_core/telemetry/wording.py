"""How many of something there are, in words."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """As in "1 device" and "10,000 devices"; `things` where the plural takes more than an s."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
