"""How a variant was made of another model: what somebody needs to make it again, or to doubt it. Nothing runs by it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

Words = Annotated[str, Meta(max_length=4096)]


class Provenance(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a variant comes from.

    Attributes:
        technique: how it was made, e.g. "static-int8".
        source: id of the model that it was made of, as the bundle called it then.
        source_digest: `Model.digest` of that model.
        parameters: what the technique was told, as a person would write it.
        libraries: versions of what made it, by package.
    """

    technique: Name
    source: Name
    source_digest: Sha256
    parameters: dict[Name, Words] = {}
    libraries: dict[Name, Words] = {}
