"""A file as signed metadata lists it; by itself, so that whoever verifies loads nothing of what a bundle is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SignedFile(NamedTuple):
    """A file as signed metadata lists it."""

    path: str
    size_bytes: int
    sha256: str
    custom: Mapping[str, Any]
