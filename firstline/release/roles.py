"""Creates, changes and signs root and targets metadata with python-tuf. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from securesystemslib.signer import CryptoSigner, Key
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp

from firstline_core.bundle.trust import duplicate_key
from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.fleet.registry import OnlineKey

ROOT_KEYS, ROOT_THRESHOLD = 3, 2
ROOT_LIFE = timedelta(days=365)
TARGETS_LIFE = timedelta(days=90)
ONLINE = (Snapshot.type, Timestamp.type)
"""The roles that a gateway's online key signs for."""


def new_root(root_keys: Sequence[Key], targets_key: Key, online_key: Key, now_s: float) -> Metadata[Root]:
    """Returns the first root metadata, unsigned: the root itself needs two signatures, each other role one."""
    root = Root(expires=_end(now_s, ROOT_LIFE), consistent_snapshot=True)
    for key in root_keys:
        root.add_key(key, Root.type)
    root.roles[Root.type].threshold = ROOT_THRESHOLD
    root.add_key(targets_key, Targets.type)
    for role in ONLINE:
        root.add_key(online_key, role)
    return Metadata(root)


def next_root(before: Metadata[Root], now_s: float) -> Metadata[Root]:
    """Returns the next root metadata, unsigned: a copy with a higher version and a later expiry."""
    root = Metadata[Root].from_bytes(before.to_bytes()).signed
    root.version += 1
    root.expires = _end(now_s, ROOT_LIFE)
    return Metadata(root)


def replace_key(root: Root, role: str, old: str, new: Key) -> None:
    """Replaces an old key of a role by a new one.

    Raises:
        ConfigError: the role has no such key.
    """
    if old not in root.roles[role].keyids:
        raise ConfigError(f"The root names no key {old} for {role}.")
    root.revoke_key(old, role)
    root.add_key(new, role)


def new_targets(files: dict[str, TargetFile], version: int, now_s: float) -> Metadata[Targets]:
    """Returns targets metadata, unsigned."""
    return Metadata(Targets(version, expires=_end(now_s, TARGETS_LIFE), targets=files))


def check_keys(root: Root) -> None:
    """Checks that no role has one key under two ids.

    Raises:
        ConfigError: a role has one, so that its holder could sign for two.
    """
    if duplicate := duplicate_key(root):
        raise ConfigError(f"It is not signed: {duplicate}, and who holds it would sign for two. Name another key.")


def sign(metadata: Metadata[Any], signers: Iterable[CryptoSigner]) -> None:
    """Adds signatures; a new signature replaces an earlier one of the same key."""
    for signer in signers:
        metadata.sign(signer, append=True)


def missing(metadata: Metadata[Root], before: Metadata[Root]) -> dict[str, int]:
    """Returns how many signatures root metadata lacks of its "own" keys, and of those "before", which devices trust."""
    results = {
        who: root.signed.get_verification_result(Root.type, metadata.signed_bytes, metadata.signatures)
        for who, root in (("own", metadata), ("before", before))
    }
    return {who: result.missing for who, result in results.items() if result.missing}


def allows(root: Root, targets: Metadata[Targets]) -> bool:
    """Returns whether targets metadata has the signatures that a root requires."""
    return bool(root.get_verification_result(Targets.type, targets.signed_bytes, targets.signatures))


def read_metadata(content: bytes, kind: type, where: str) -> Metadata[Any]:
    """Reads metadata of a kind.

    Raises:
        IntegrityError: it is not valid.
    """
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(content)
    except (RepositoryError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} is not signed metadata: {error}.") from error
    if not isinstance(metadata.signed, kind):
        raise IntegrityError(f"{where} is {metadata.signed.type} metadata, not {kind.__name__.lower()} metadata.")
    return metadata


def public_key(online: OnlineKey) -> Key:
    """Returns a gateway's public key, as the root names it.

    Raises:
        IntegrityError: it is not valid.
    """
    try:
        return Key.from_dict(online.keyid, dict(online.key))
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityError(f"The gateway's online key cannot be used: {error}.") from error


def _end(now_s: float, life: timedelta) -> datetime:
    return datetime.fromtimestamp(int(now_s), UTC) + life
