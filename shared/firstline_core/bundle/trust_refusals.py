"""Translates python-tuf's errors to Firstline's, with one class for each kind of attack.

For the table of attacks see `trust.py`. The agent imports neither of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Snapshot, Timestamp

from firstline_core.errors import (
    FirstlineError,
    IntegrityError,
    MetadataExpiredError,
    MetadataMismatchError,
    MetadataRollbackError,
    ProtocolError,
    SignatureError,
)

if TYPE_CHECKING:
    from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet


def refusal(
    error: exceptions.RepositoryError | exceptions.DownloadError,
    name: str,
    content: bytes,
    trusted: TrustedMetadataSet | None,
) -> FirstlineError:
    """Returns the error to raise for one of python-tuf's.

    Args:
        error: of python-tuf.
        name: of the last file.
        content: of the last file.
        trusted: metadata verified before; None if the root itself was refused.
    """
    said = str(error).rstrip(".")
    if trusted is None:
        return IntegrityError(f"The root metadata of this device is invalid: {said}; enrol the device again.")
    if isinstance(error, exceptions.DownloadError):
        return ProtocolError(f"The registry has no {name}: has a release been published? ({said}.)")
    if isinstance(error, exceptions.ExpiredMetadataError):
        return _expired(name, trusted)
    if isinstance(error, exceptions.UnsignedMetadataError):
        return _unsigned(name, said)
    if isinstance(error, exceptions.LengthOrHashMismatchError):
        return _mismatch(name, said) if _is_genuine(content, trusted) else _unsigned(name, said)
    if isinstance(error, exceptions.BadVersionNumberError):
        return _wrong_version(name, content, trusted, said)
    if "missing info" in said:  # a snapshot without metadata that an earlier one listed
        return _rollback(name, said)
    return IntegrityError(f"{name} is not valid metadata: {said}.")


def _expired(name: str, trusted: TrustedMetadataSet) -> MetadataExpiredError:
    now = trusted.reference_time
    ended = next((signed for signed in trusted if signed.is_expired(now)), None)
    which = (
        f"{ended.type} metadata expired at {ended.expires.isoformat()}" if ended is not None else f"{name} has expired"
    )
    return MetadataExpiredError(
        f"The registry's {which}, and it offers no newer one. It was not renewed, newer metadata is held back, "
        f"or this device's clock, which shows {now.isoformat(timespec='minutes')}, is wrong. "
        "New bundles are not installed until this is fixed (`firstline keys status`); the installed ones stay in use."
    )


def _unsigned(name: str, said: str) -> SignatureError:
    return SignatureError(
        f"{name} does not have the required signatures: {said}. It was modified, or signed with a key that the "
        "root does not name. It is not used."
    )


def _mismatch(name: str, said: str) -> MetadataMismatchError:
    return MetadataMismatchError(
        f"{name} is genuine, but does not match the other metadata: {said}. The registry mixes metadata of different "
        "moments. It is not used."
    )


def _rollback(name: str, said: str) -> MetadataRollbackError:
    return MetadataRollbackError(
        f"{name} is older than the metadata seen before: {said}. A registry must not go back: after a restored backup "
        "publish again (`firstline keys publish`)."
    )


def _wrong_version(name: str, content: bytes, trusted: TrustedMetadataSet, said: str) -> FirstlineError:
    """Tells a rollback from a mismatch with the other metadata; the content was verified before."""
    found: Metadata[Any] = Metadata.from_bytes(content)
    signed = found.signed
    if signed.type == Root.type:
        older = signed.version <= trusted.root.version
    elif signed.type == Snapshot.type:
        older = signed.version == trusted.timestamp.snapshot_meta.version
    else:
        older = signed.type == Timestamp.type
    return (_rollback if older else _mismatch)(name, said)


def _is_genuine(content: bytes, trusted: TrustedMetadataSet) -> bool:
    """Returns whether the content is signed by the required keys."""
    try:
        found: Metadata[Any] = Metadata.from_bytes(content)
        trusted.root.verify_delegate(found.signed.type, found.signed_bytes, found.signatures)
    except (exceptions.RepositoryError, ValueError):
        return False
    return True
