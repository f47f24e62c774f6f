"""Verifies newly signed metadata, and signs the snapshot and timestamp of it with the online key; on python-tuf.

The gateway creates the private half of the online key in its identity folder, which it never leaves; the root names the
public half. The key signs nothing that makes a device trust another model: an attacker who controls the gateway can
withhold metadata until it expires, or mix signed versions, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from firstline_core.bundle.trust import LIMITS_BYTES, duplicate_key
from firstline_core.errors import (
    ConflictError,
    MetadataExpiredError,
    NotReadyError,
    PayloadTooLargeError,
    RequestError,
    SignatureError,
)
from firstline_core.fleet.registry import OnlineKey
from firstline_core.storage.artefact import SignedFile
from firstline_gateway.identity import authorities
from firstline_gateway.registry.records import RoleHead, SignedMetadata

ONLINE_LIFE = timedelta(days=1)
"""Lifetime of a snapshot and of a timestamp, which limits for how long an attacker can show a device an old one."""

_SHA256 = "sha256"
_KEY_PREFIX, _KEY_SUFFIX = "registry-", ".key"
_ID_LETTERS = 16


class AcceptedMetadata(NamedTuple):
    """The new current metadata.

    Attributes:
        fresh: the new documents.
        root: the root metadata.
        targets: the targets metadata.
        targets_content: the same as bytes.
    """

    fresh: tuple[SignedMetadata, ...]
    root: Root
    targets: Targets
    targets_content: bytes


def accept(
    contents: Sequence[bytes], root_now: SignedMetadata | None, targets_now: SignedMetadata | None, now_s: float
) -> AcceptedMetadata:
    """Verifies metadata that is to become current.

    Args:
        contents: root metadata in the order of their versions, and at most one targets metadata.
        root_now: the current root; None in a new registry, which takes the first that comes.
        targets_now: the current targets.
        now_s: wall time.

    Raises:
        RequestError: it is not root or targets metadata.
        ConflictError: it does not follow what is current.
        SignatureError: too few of the keys that may sign it have signed it.
        MetadataExpiredError: it has expired already.
    """
    read = [(_read(content), content) for content in contents]
    roots = [(found, content) for found, content in read if isinstance(found.signed, Root)]
    targets = [(found, content) for found, content in read if isinstance(found.signed, Targets)]
    if len(roots) + len(targets) < len(read) or len(targets) > 1:
        raise RequestError("Only root metadata and one targets metadata are published; the gateway makes the others.")
    before = _read(root_now.content) if root_now is not None else None
    fresh: list[SignedMetadata] = []
    for found, content in roots:
        _check_root(found, before)
        fresh.append(_document(found, content))
        before = found
    if before is None:
        raise RequestError("This registry is new: its first publication needs root metadata (`firstline keys init`).")
    root: Root = before.signed
    _check_end(root, now_s)
    if targets:
        current, content = targets[0]
        _check_targets(current, root, targets_now)
        _check_end(current.signed, now_s)
        fresh.append(_document(current, content))
        return AcceptedMetadata(tuple(fresh), root, current.signed, content)
    if targets_now is None:
        raise RequestError(
            "This registry is new: its first publication needs targets metadata (`firstline keys init`)."
        )
    current = _read(targets_now.content)
    _verify(root, Targets.type, current, "The new root has no longer the keys that the current targets are signed with")
    return AcceptedMetadata(tuple(fresh), root, current.signed, targets_now.content)


def signed_online(
    targets_content: bytes, signer: CryptoSigner, heads: Mapping[str, RoleHead], now_s: float
) -> list[SignedMetadata]:
    """Returns the next snapshot and the next timestamp.

    Their versions are at least the time in seconds since 1970: after its store was restored from a backup, a registry
    signs newer versions than devices have seen.

    Args:
        targets_content: the targets metadata that they are of.
        signer: with the key that the root names for both.
        heads: of the present metadata by role; empty in a new registry.
        now_s: wall time.
    """
    expires = datetime.fromtimestamp(int(now_s), UTC) + ONLINE_LIFE

    def next_version(role: str) -> int:
        return max(heads[role].version + 1 if role in heads else 1, int(now_s))

    def listed(version: int, content: bytes) -> MetaFile:
        # Without its length: the hash and the signature detect a file of the wrong length.
        file = MetaFile.from_data(version, content, [_SHA256])
        file.length = None
        return file

    def signed(metadata: Metadata[Any]) -> bytes:
        metadata.sign(signer)
        return metadata.to_bytes()

    files = {f"{Targets.type}.json": listed(_read(targets_content).signed.version, targets_content)}
    snapshot = Metadata(Snapshot(next_version(Snapshot.type), expires=expires, meta=files))
    content = signed(snapshot)
    timestamp = Metadata(
        Timestamp(next_version(Timestamp.type), expires=expires, snapshot_meta=listed(snapshot.signed.version, content))
    )
    return [_document(snapshot, content), _document(timestamp, signed(timestamp))]


def online_keys(root: Root) -> set[str]:
    """Returns the ids of the keys that may sign both snapshots and timestamps alone."""
    both = [root.roles[role] for role in (Snapshot.type, Timestamp.type)]
    if any(role.threshold != 1 for role in both):
        return set()
    return set(both[0].keyids) & set(both[1].keyids)


def root_of(content: bytes) -> Root:
    """Returns root metadata that was verified before."""
    root: Root = _read(content).signed
    return root


def files_of(targets: Targets) -> dict[str, SignedFile]:
    """Returns the files that targets metadata lists, by path.

    Raises:
        RequestError: a file is listed without its sha256.
    """
    found = {}
    for path, target in targets.targets.items():
        if _SHA256 not in target.hashes:
            raise RequestError(
                f"The target {path!a} is signed without a sha256, by which files are kept; sign it anew."
            )
        found[path] = SignedFile(path, target.length, target.hashes[_SHA256], target.custom or {})
    return found


def targets_of(content: bytes) -> Targets:
    """Returns targets metadata that was verified before."""
    targets: Targets = _read(content).signed
    return targets


def _read(content: bytes) -> Metadata[Any]:
    try:
        found: Metadata[Any] = Metadata.from_bytes(content)
    except (RepositoryError, ValueError, RecursionError) as error:
        raise RequestError(f"What was sent is no signed metadata: {error}.") from error
    limit = LIMITS_BYTES[found.signed.type]
    if len(content) > limit:
        raise PayloadTooLargeError(
            f"The {found.signed.type} metadata has {len(content)} bytes, and devices read {limit}; remove old versions "
            "(`firstline model delete`)."
        )
    return found


def _check_root(found: Metadata[Any], before: Metadata[Any] | None) -> None:
    expected = before.signed.version + 1 if before is not None else 1
    if found.signed.version != expected:
        raise ConflictError(
            f"Root metadata of version {found.signed.version} was sent, and {expected} comes next; look at what is "
            "there: `firstline keys get`."
        )
    if not found.signed.consistent_snapshot:
        raise RequestError("The root metadata has consistent_snapshot false; this registry serves true alone.")
    if duplicate := duplicate_key(found.signed):
        raise RequestError(
            f"Version {expected} cannot be the root: {duplicate}; exchange one of them (`firstline keys rotate`)."
        )
    if before is not None:
        _verify(before.signed, Root.type, found, f"Version {expected} is not what the root before it allows")
    _verify(found.signed, Root.type, found, f"Version {expected} is not signed by enough of its own root keys")


def _check_targets(found: Metadata[Any], root: Root, now: SignedMetadata | None) -> None:
    _verify(root, Targets.type, found, "The targets are not signed by a key that the root names for them")
    if now is not None and found.signed.version <= now.version:
        raise ConflictError(
            f"Targets of version {found.signed.version} were sent, and {now.version} is current: another person "
            "has published since; fetch the current targets and sign again."
        )
    if found.signed.delegations is not None:
        raise RequestError("The targets delegate to other roles; this registry publishes none.")


def _check_end(signed: Any, now_s: float) -> None:
    if signed.is_expired(datetime.fromtimestamp(now_s, UTC)):
        raise MetadataExpiredError(f"The {signed.type} metadata ended at {signed.expires.isoformat()}; sign it anew.")


def _verify(root: Root, role: str, found: Metadata[Any], sentence: str) -> None:
    try:
        root.verify_delegate(role, found.signed_bytes, found.signatures)
    except UnsignedMetadataError as error:
        raise SignatureError(f"{sentence}: {error}.") from error
    except (RepositoryError, ValueError) as error:
        raise RequestError(f"{sentence}: {error}.") from error


def _document(found: Metadata[Any], content: bytes) -> SignedMetadata:
    return SignedMetadata(found.signed.type, found.signed.version, content, found.signed.expires.timestamp())


def signers(directory: Path) -> list[CryptoSigner]:
    """Returns the online keys in the identity folder, the newest last.

    Raises:
        ConfigError: a file cannot be read, or is not such a key.
    """
    if not directory.exists():
        return []
    files = sorted(directory.glob(f"{_KEY_PREFIX}*{_KEY_SUFFIX}"), key=lambda file: file.stat().st_mtime_ns)
    otherwise = "let the root name another: `firstline keys rotate online --gateway URL`"
    return [CryptoSigner(authorities.read_signing_key(file, otherwise)) for file in files]


def signer_for(directory: Path, keyids: set[str]) -> CryptoSigner:
    """Returns an online key that the root names.

    Raises:
        NotReadyError: it is not here.
        ConfigError: a file cannot be read, or is not such a key.
    """
    for signer in signers(directory):
        if signer.public_key.keyid in keyids:
            return signer
    raise NotReadyError(
        f"This gateway has none of the online keys that the root metadata names, in {directory}: bring the file from "
        "the gateway that has it, or name this one's key (`firstline keys rotate online --gateway URL`)."
    )


def offered_key(directory: Path, used: set[str]) -> OnlineKey:
    """Returns the public half of the key that a root is to name; creates the key if missing.

    Args:
        directory: the identity folder.
        used: ids of keys that are not to be returned.

    Raises:
        ConfigError: the folder cannot be written.
    """
    with authorities.locked(directory):
        usable = [signer for signer in signers(directory) if signer.public_key.keyid not in used]
        signer = usable[-1] if usable else _create_key(directory)
    return OnlineKey(signer.public_key.keyid, signer.public_key.to_dict())


def _create_key(directory: Path) -> CryptoSigner:
    signer = CryptoSigner.generate_ed25519()
    file = directory / f"{_KEY_PREFIX}{signer.public_key.keyid[:_ID_LETTERS]}{_KEY_SUFFIX}"
    authorities.write(file, signer.private_bytes, private=True)
    return signer
