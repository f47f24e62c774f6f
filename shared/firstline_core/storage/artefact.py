"""A file of a bundle, with path and digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from firstline_core.types import Sha256

# \Z, because $ also matches before a newline at the end. Relative, with forward slashes and no part that starts with a
# dot: a manifest cannot leave its directory.
RelativePath = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z")]


class Artefact(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the bundle. It may be absent on a device that does not need it; if present, it is verified."""

    file: RelativePath
    sha256: Sha256
    size_bytes: Annotated[int, Meta(ge=0)]


class SignedFile(NamedTuple):
    """A file as signed metadata lists it."""

    path: str
    size_bytes: int
    sha256: str
    custom: Mapping[str, Any]
