"""The provenance of a variant: how it was derived from another model. For information only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

Words = Annotated[str, Meta(max_length=4096)]


class Provenance(Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of a variant.

    Attributes:
        technique: such as "static-int8".
        source: id of the source model in its bundle.
        source_digest: `Model.digest` of the source model.
        parameters: of the technique, as text.
        libraries: versions of the packages that were used.
    """

    technique: Name
    source: Name
    source_digest: Sha256
    parameters: dict[Name, Words] = {}
    libraries: dict[Name, Words] = {}
