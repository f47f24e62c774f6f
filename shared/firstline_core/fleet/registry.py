"""What a gateway's registry and those who fill it say to each other over HTTP: addresses and documents, no I/O."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from firstline_core.fleet.target import Variant
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

REGISTRY_PATH = "/fleet/v1/registry"
BLOBS_PATH = REGISTRY_PATH + "/blobs"
METADATA_PATH = REGISTRY_PATH + "/metadata"
ONLINE_KEY_PATH = REGISTRY_PATH + "/online-key"
BUNDLES_PATH = REGISTRY_PATH + "/bundles"
CONFIGURATIONS_PATH = REGISTRY_PATH + "/configurations"
ALIASES_PATH = REGISTRY_PATH + "/aliases"

PUBLICATION_LIMIT_BYTES = 16 * 1024 * 1024
_VERSION_LIMIT = 999_999_999_999_999_999

Version = Annotated[int, Meta(ge=1, le=_VERSION_LIMIT)]


class OnlineKey(Struct, frozen=True):
    """The public half of the key by which a gateway signs snapshots and timestamps.

    Attributes:
        keyid: as metadata names it.
        key: as metadata has it: "keytype", "scheme" and "keyval".
    """

    keyid: Sha256
    key: dict[str, Any]


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    """Signed metadata that is to be current from now on, all of it at once: root metadata in order, and targets."""

    metadata: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=64)]


class RoleState(Struct, frozen=True):
    """The newest metadata of a role, and when it ends (seconds since 1970)."""

    role: str
    version: int
    expires_s: float


class RegistryStatus(Struct, frozen=True):
    """How a registry is.

    Attributes:
        roles: what is published; empty where nothing is yet.
        online_key: that snapshots and timestamps are signed with; None where this gateway has none that the root names.
        authority_expires_s: when the certificate authority of devices ends.
        warnings: what ends soon, or has ended, in sentences.
        blobs: how many files are kept.
        blobs_bytes: of all of them.
        limit_bytes: that they may have; 0 where the gateway does not say.
    """

    roles: tuple[RoleState, ...]
    online_key: str | None
    authority_expires_s: float | None
    warnings: tuple[str, ...]
    blobs: int
    blobs_bytes: int
    limit_bytes: int = 0


class BundleEntry(Struct, frozen=True):
    """A bundle that is signed for: see `fleet/target.py`; `size_bytes` is of all its files, the full model's too."""

    name: Name
    version: Version
    size_bytes: int
    manifest_sha256: Sha256
    variants: tuple[Variant, ...]
    full_digest: str
    aliases: tuple[str, ...]


class BundlePage(Struct, frozen=True):
    """Bundles by name and version; `after` is what to ask for next (`?after=`), None at the end."""

    bundles: tuple[BundleEntry, ...]
    after: str | None


class ConfigurationEntry(Struct, frozen=True):
    """A configuration that is signed for: see `fleet/configuration.py`; its text is the blob of that sha256."""

    name: Name
    version: Version
    sha256: Sha256
    size_bytes: int


class ConfigurationPage(Struct, frozen=True):
    """Configurations by name and version; `after` is what to ask for next (`?after=`), None at the end."""

    configurations: tuple[ConfigurationEntry, ...]
    after: str | None


class AliasRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Which version an alias is to stand for."""

    version: Version


class AliasChange(Struct, frozen=True):
    """What an alias stood for from a time on (seconds since 1970), and by whom; `version` None is: for nothing."""

    model: Name
    alias: Name
    version: int | None
    by: str
    at_s: float


class AliasList(Struct, frozen=True):
    """Aliases as they are, or one's history: the newest first."""

    aliases: tuple[AliasChange, ...]
