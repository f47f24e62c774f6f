"""Verification of signed metadata: the client of The Update Framework, on `tuf.ngclient.Updater`.

Metadata is fetched from a `MetadataSource`, verified against a root that the device received once, and stored to detect
rollbacks. This module fetches no model files. Only installations use it: expired metadata stops no inference.

Each attack has its own error:

    tampered with, or too few valid signatures             SignatureError
    older than the metadata seen before                    MetadataRollbackError
    frozen: newer metadata is held back                    MetadataExpiredError
    genuine files of different moments                     MetadataMismatchError
    endless, or no metadata at all                         IntegrityError
    slower than the time limit                             RemoteTimeoutError

An older bundle that the current targets list may be installed: that is a signed rollback.

The agent does not import this module, because python-tuf and urllib3 take several megabytes of memory. A short-lived
process uses it instead (`firstline_edge.fleet.updates.metadata_verifier`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from securesystemslib.signer import Key
from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from firstline_core import errors
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.protocol.http import GRACE_S, LEAST_BYTES_PER_S
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import make_folder, sync_folder, system_reason, write_whole

if TYPE_CHECKING:
    from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet

LIMITS_BYTES: Mapping[str, int] = {"root": 512_000, "timestamp": 16_384, "snapshot": 262_144, "targets": 8_000_000}
"""Size limits of metadata; the targets have room for about 20,000 files."""

_ROTATIONS_LIMIT = 256
_SHA256 = "sha256"


class MetadataSource(Protocol):
    """A source of metadata, such as `HttpMetadata` or a simulation. Calls may block."""

    def fetch(self, name: str) -> Iterator[bytes]:
        """Yields the bytes of a file as they arrive.

        Args:
            name: such as "timestamp.json" or "3.root.json", quoted as part of a URL.

        Raises:
            NotFoundError: the file does not exist.
            LinkError: no answer.
            FirstlineError: any other error of the server.
        """
        ...


@dataclass(eq=False)
class Trust:
    """The trusted metadata of one device. Calls block; use it from one thread at a time.

    Args:
        folder: stores verified metadata; created if necessary, and used by nothing else.
        source: of the metadata.
        anchor: the root metadata that the device trusts; None for `root.json` in `folder`.
        now_s: returns the time for checks of expiry (wall time, seconds); on a device from its `TimeFloor`.
        clock: for time limits.
        rotations_limit: maximum number of new root versions per refresh.

    Attributes:
        updater: python-tuf's, with the verified metadata; None unless the latest `refresh` succeeded.
    """

    folder: Path
    source: MetadataSource
    _: KW_ONLY
    anchor: bytes | None
    now_s: Callable[[], float]
    clock: Clock = SYSTEM_CLOCK
    rotations_limit: int = _ROTATIONS_LIMIT
    updater: _DurableUpdater | None = field(default=None, init=False)

    def refresh(self) -> dict[str, SignedFile]:
        """Fetches and verifies the newest metadata; returns the signed files by path.

        Raises:
            SignatureError, MetadataRollbackError, MetadataExpiredError, MetadataMismatchError, IntegrityError: it is
                not trusted; the metadata trusted before stays on the disk.
            LinkError: it could not be fetched.
            UpdateError: it cannot be stored; NoRoomError if the disk is full.
            FirstlineError: any other error of the source.
        """
        try:
            return self._refresh()
        except errors.SignatureError:
            return self._refresh()  # a newer root, published after this device asked for one, may name other keys

    def _refresh(self) -> dict[str, SignedFile]:
        config = UpdaterConfig(
            max_root_rotations=self.rotations_limit,
            root_max_length=LIMITS_BYTES["root"],
            timestamp_max_length=LIMITS_BYTES["timestamp"],
            snapshot_max_length=LIMITS_BYTES["snapshot"],
            targets_max_length=LIMITS_BYTES["targets"],
        )
        fetcher = _Fetcher(self.source, self.clock)
        updater = self.updater = None
        try:
            make_folder(self.folder)
            updater = _DurableUpdater(str(self.folder), "", fetcher=fetcher, config=config, bootstrap=self.anchor)
            updater.trusted.reference_time = datetime.fromtimestamp(self.now_s(), UTC)
            updater.refresh()
        except (exceptions.RepositoryError, exceptions.DownloadError) as error:
            raise refusal(error, fetcher.name, fetcher.content, updater.trusted if updater else None) from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (errors.NoRoomError if full else errors.UpdateError)(
                f"Metadata cannot be kept in {self.folder}: {system_reason(error)}."
            ) from error
        self.updater = updater
        return {
            path: SignedFile(path, found.length, found.hashes[_SHA256], found.custom or {})
            for path, found in updater.trusted.targets.targets.items()
            if _SHA256 in found.hashes
        }

    def verified_targets(self) -> Metadata[Targets]:
        """Refreshes, and returns the signed targets metadata, on which the next version is based.

        Raises:
            FirstlineError: see `refresh`.
        """
        self.refresh()
        return Metadata[Targets].from_file(str(self.folder / "targets.json"))


class _DurableUpdater(Updater):
    """An updater whose files survive a power cut, and which does not rewrite unchanged files, to spare flash memory.

    python-tuf writes without fsync, and treats an empty timestamp after a power cut as absent: it would then accept
    older metadata. The overridden methods are private to python-tuf: hence the upper bound on its version.
    """

    @property
    def trusted(self) -> TrustedMetadataSet:
        """Returns the set of verified metadata; its `reference_time` is the time for checks of expiry."""
        return self._trusted_set

    def _persist_file(self, filename: str, data: bytes) -> None:
        path = Path(filename)
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data)

    def _persist_root(self, version: int, data: bytes) -> None:
        self._check_keys()
        super()._persist_root(version, data)

    def _check_keys(self) -> None:
        if problem := duplicate_key(self.trusted.root):
            raise exceptions.RepositoryError(f"{problem}, which would sign for two")

    def _update_root_symlink(self) -> None:
        self._check_keys()
        link = Path(self._dir, "root.json")
        current = f"root_history/{self.trusted.root.version}.root.json"
        if not link.is_symlink() or os.readlink(link) != current:  # noqa: PTH115
            fresh = link.with_name("root.json.new")
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(current)
            fresh.replace(link)
            sync_folder(link.parent)


class _Fetcher(FetcherInterface):
    """python-tuf's fetcher on a `MetadataSource`. It keeps the last file for the error message of a refusal."""

    def __init__(self, source: MetadataSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self.name = "root.json"
        self.content = b""

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """Downloads to memory; python-tuf's own method uses a file."""
        self.name, self.content = url.rpartition("/")[2], b""
        parts, size_bytes = [], 0
        for part in self._fetch(self.name):
            size_bytes += len(part)
            if size_bytes > max_length:
                raise errors.IntegrityError(
                    f"{self.name} goes on after {max_length} bytes, the most that is read of it; is this the registry?"
                )
            parts.append(part)
        self.content = b"".join(parts)
        return self.content

    def _fetch(self, url: str) -> Iterator[bytes]:
        start_s, size_bytes = self._clock.monotonic_s(), 0
        try:
            for part in self._source.fetch(url):
                size_bytes += len(part)
                if self._clock.monotonic_s() - start_s > GRACE_S + size_bytes / LEAST_BYTES_PER_S:
                    raise errors.RemoteTimeoutError(
                        f"Only {size_bytes} bytes of {url} came in {self._clock.monotonic_s() - start_s:.0f} s; "
                        "it is tried again later."
                    )
                yield part
        except errors.NotFoundError as error:
            raise exceptions.DownloadHTTPError(error.message, 404) from error


def refusal(
    error: exceptions.RepositoryError | exceptions.DownloadError,
    name: str,
    content: bytes,
    trusted: TrustedMetadataSet | None,
) -> errors.FirstlineError:
    """Returns the error to raise for one of python-tuf's.

    Args:
        error: of python-tuf.
        name: of the last file.
        content: of the last file.
        trusted: metadata verified before; None if the root itself was refused.
    """
    reason = str(error).rstrip(".")
    if trusted is None:
        return errors.IntegrityError(f"The root metadata of this device is invalid: {reason}; enrol the device again.")
    if isinstance(error, exceptions.DownloadError):
        return errors.ProtocolError(f"The registry has no {name}: has a release been published? ({reason}.)")
    if isinstance(error, exceptions.ExpiredMetadataError):
        return _expired(name, trusted)
    if isinstance(error, exceptions.UnsignedMetadataError):
        return _unsigned(name, reason)
    if isinstance(error, exceptions.LengthOrHashMismatchError):
        return _mismatch(name, reason) if _is_genuine(content, trusted) else _unsigned(name, reason)
    if isinstance(error, exceptions.BadVersionNumberError):
        return _wrong_version(name, content, trusted, reason)
    if "missing info" in reason:  # a snapshot without metadata that an earlier one listed
        return _rollback(name, reason)
    return errors.IntegrityError(f"{name} is not valid metadata: {reason}.")


def _expired(name: str, trusted: TrustedMetadataSet) -> errors.MetadataExpiredError:
    now = trusted.reference_time
    ended = next((signed for signed in trusted if signed.is_expired(now)), None)
    which = (
        f"{ended.type} metadata expired at {ended.expires.isoformat()}" if ended is not None else f"{name} has expired"
    )
    return errors.MetadataExpiredError(
        f"The registry's {which}, and it offers no newer one. It was not renewed, newer metadata is held back, "
        f"or this device's clock, which shows {now.isoformat(timespec='minutes')}, is wrong. "
        "New bundles are not installed until this is fixed (`firstline keys get`); the installed ones stay in use."
    )


def _unsigned(name: str, reason: str) -> errors.SignatureError:
    return errors.SignatureError(
        f"{name} does not have the required signatures: {reason}. It was modified, or signed with a key that the "
        "root does not name. It is not used."
    )


def _mismatch(name: str, reason: str) -> errors.MetadataMismatchError:
    return errors.MetadataMismatchError(
        f"{name} is genuine, but does not match the other metadata: {reason}. The registry mixes metadata of different "
        "moments. It is not used."
    )


def _rollback(name: str, reason: str) -> errors.MetadataRollbackError:
    return errors.MetadataRollbackError(
        f"{name} is older than the metadata seen before: {reason}. A registry must not go back: after a restored "
        "backup publish again (`firstline keys publish`)."
    )


def _wrong_version(name: str, content: bytes, trusted: TrustedMetadataSet, reason: str) -> errors.FirstlineError:
    """Tells a rollback from a mismatch with the other metadata; the content was verified before."""
    found: Metadata[Any] = Metadata.from_bytes(content)
    signed = found.signed
    if signed.type == Root.type:
        older = signed.version <= trusted.root.version
    elif signed.type == Snapshot.type:
        older = signed.version == trusted.timestamp.snapshot_meta.version
    else:
        older = signed.type == Timestamp.type
    return (_rollback if older else _mismatch)(name, reason)


def _is_genuine(content: bytes, trusted: TrustedMetadataSet) -> bool:
    """Returns whether the content is signed by the required keys."""
    try:
        found: Metadata[Any] = Metadata.from_bytes(content)
        trusted.root.verify_delegate(found.signed.type, found.signed_bytes, found.signatures)
    except (exceptions.RepositoryError, ValueError):
        return False
    return True


def duplicate_key(root: Root) -> str:
    """Returns the problem if a role has one key under two ids, whose signature would count twice; "" otherwise."""
    for name, role in root.roles.items():
        found: dict[tuple[str, bytes], str] = {}
        for keyid in role.keyids:
            other = found.setdefault(_material(root.keys[keyid]), keyid)
            if other != keyid:
                return f"for {name} the root names one key twice, as {other} and as {keyid}"
    return ""


def _material(key: Key) -> tuple[str, bytes]:
    """Returns the key independent of its encoding."""
    public = str(key.keyval.get("public", ""))
    try:
        if key.keytype == "ed25519":
            return key.keytype, bytes.fromhex(public)
        # The same bytes for one key, whatever its type is called and wherever its lines break.
        return "", load_pem_public_key(public.encode()).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return key.keytype, public.encode()  # its signatures cannot be verified
