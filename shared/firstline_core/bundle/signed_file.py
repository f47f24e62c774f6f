"""A file listed in signed metadata; a separate module, so that the verifying process loads no bundle code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SignedFile(NamedTuple):
    """A file as signed metadata lists it."""

    path: str
    size_bytes: int
    sha256: str
    custom: Mapping[str, Any]
