"""The HTTP interface of a gateway's registry: addresses, documents, and warnings about what expires soon. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from firstline_core.fleet.target import Variant
from firstline_core.telemetry.wording import duration_text, time_text
from firstline_core.types import Name, Sha256
from firstline_core.units import DAY_S, HOUR_S

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

AUTHORITY = "authority"
"""Key of the devices' certificate authority among the roles."""


class OnlineKey(Struct, frozen=True):
    """The public half of the key with which a gateway signs snapshots and timestamps.

    Attributes:
        keyid: as in the metadata.
        key: as in the metadata: "keytype", "scheme" and "keyval".
    """

    keyid: Sha256
    key: dict[str, Any]


class Publication(Struct, frozen=True, forbid_unknown_fields=True):
    """Signed metadata to publish at once: root metadata in order, and targets."""

    metadata: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=64)]


class RoleState(Struct, frozen=True):
    """The newest metadata of a role, and when it expires (seconds since 1970)."""

    role: str
    version: int
    expires_s: float


class RegistryStatus(Struct, frozen=True):
    """The status of a registry.

    Attributes:
        roles: published metadata; empty before the first publication.
        online_key: signs snapshots and timestamps; None if this gateway has no key that the root names.
        authority_expires_s: when the devices' certificate authority expires.
        warnings: sentences about what has expired or expires soon.
        blobs: number of stored files.
        blobs_bytes: total size of the stored files.
        limit_bytes: maximum total size; 0 if the gateway does not report it.
    """

    roles: tuple[RoleState, ...]
    online_key: str | None
    authority_expires_s: float | None
    warnings: tuple[str, ...]
    blobs: int
    blobs_bytes: int
    limit_bytes: int = 0


class BundleEntry(Struct, frozen=True):
    """A signed bundle (see `fleet/target.py`); `size_bytes` is the size of all its files, the full model included."""

    name: Name
    version: Version
    size_bytes: int
    manifest_sha256: Sha256
    variants: tuple[Variant, ...]
    full_digest: str
    aliases: tuple[str, ...]


class BundlePage(Struct, frozen=True):
    """A page of bundles, sorted by name and version; `after` is the cursor of the next page, None at the end."""

    bundles: tuple[BundleEntry, ...]
    after: str | None


class ConfigurationEntry(Struct, frozen=True):
    """A signed configuration (see `fleet/configuration.py`); its text is the blob with this sha256."""

    name: Name
    version: Version
    sha256: Sha256
    size_bytes: int


class ConfigurationPage(Struct, frozen=True):
    """A page of configurations, sorted by name and version; `after` is the cursor of the next page, None at the end."""

    configurations: tuple[ConfigurationEntry, ...]
    after: str | None


class AliasRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The version that an alias must point to."""

    version: Version


class AliasChange(Struct, frozen=True):
    """A change of an alias: its new version (None if it was deleted), its author, and its time (seconds since 1970)."""

    model: Name
    alias: Name
    version: int | None
    by: str
    at_s: float


class AliasList(Struct, frozen=True):
    """The current aliases, or the history of one alias, newest first."""

    aliases: tuple[AliasChange, ...]


# Time before the expiry at which the warning begins: long enough to bring together the people who can renew it.
_WARN_S: Mapping[str, float] = {
    "root": 30 * DAY_S,
    "targets": 14 * DAY_S,
    "snapshot": 6 * HOUR_S,
    "timestamp": 6 * HOUR_S,
    AUTHORITY: 60 * DAY_S,
}
_REMEDY: Mapping[str, str] = {
    "root": "renew it with two of the root keys: `firstline keys renew --gateway URL`",
    "targets": "renew it: `firstline keys renew --gateway URL`, or push a bundle",
    "snapshot": "the gateway has not renewed it: see its log, and whether it has the online key that the root names",
    "timestamp": "the gateway has not renewed it: see its log, and whether it has the online key that the root names",
    AUTHORITY: "let another take over in time: `firstline-gateway ca prepare`",
}


def expiry_warnings(expires_s: Mapping[str, float], now_s: float) -> dict[str, str]:
    """Returns one sentence for each item that has expired or expires soon, with the remedy.

    Args:
        expires_s: expiry of each role's metadata and of the devices' certificate `AUTHORITY` (wall time, seconds).
        now_s: wall time.
    """
    found = {}
    for role, end_s in expires_s.items():
        left_s = end_s - now_s
        if left_s < _WARN_S[role]:
            what = "The devices' certificate authority" if role == AUTHORITY else f"The {role} metadata"
            tense = f"ends in {duration_text(left_s)}, on" if left_s > 0 else "ended on"
            found[role] = f"{what} {tense} {time_text(end_s)}; {_REMEDY[role]}."
    return found
