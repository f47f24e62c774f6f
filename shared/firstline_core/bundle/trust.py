"""What a device believes about models: the client of The Update Framework, on `tuf.ngclient.Updater`.

Metadata is fetched from a port, verified against a root that the device was given once, and kept, so that what was
seen is never taken back. Nothing here fetches a model's bytes, and nothing but a new installation asks: metadata that
has expired stops no inference.

Each attack has its own error:

    tampered with, or too few of those signed who may      SignatureError
    older than what this device has seen                   MetadataRollbackError
    frozen: newer metadata is held back                    MetadataExpiredError
    genuine files of different moments                     MetadataMismatchError
    endless, or no metadata at all                         IntegrityError
    slower than anybody waits                              RemoteTimeoutError

An older bundle that the present targets list may be installed: that is a rollback which somebody signed.

No agent imports this module: python-tuf brings urllib3, and takes some megabytes for good. It has a process for it
(`firstline_edge.fleet.updates.verifier`), which ends with the look.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, TargetFile, Targets
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from firstline_core.bundle.key_material import named_twice
from firstline_core.bundle.signed_file import SignedFile
from firstline_core.bundle.trust_refusals import refusal
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    IntegrityError,
    NoRoomError,
    NotFoundError,
    RemoteTimeoutError,
    UpdateError,
)
from firstline_core.storage.files import make_folder, sync_folder, write_whole

if TYPE_CHECKING:
    from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet

LIMITS_BYTES: Mapping[str, int] = {"root": 512_000, "timestamp": 16_384, "snapshot": 262_144, "targets": 8_000_000}
"""The largest metadata that is read; some 20,000 files of bundles fit the targets."""

# A file may take so long, and longer by what came of it: the slowest mobile links carry more.
_GRACE_S = 20.0
_LEAST_BYTES_PER_S = 1024
_ROTATIONS_LIMIT = 256
_SHA256 = "sha256"


class MetadataSource(Protocol):
    """Where metadata comes from. Simulations implement it as `bundle/trust_http.py` does; it may block."""

    def fetch(self, name: str) -> Iterator[bytes]:
        """A file's bytes, in parts as they come.

        Args:
            name: such as "timestamp.json" or "3.root.json", quoted as a part of a URL is.

        Raises:
            NotFoundError: there is no such file.
            LinkError: nobody answers.
            FirstlineError: what else the far side said.
        """
        ...


class Trust:
    """What one device believes; one thread at a time, for it blocks.

    Args:
        folder: where verified metadata is kept, for this alone; made here.
        source: where it comes from.
        anchor: the root metadata that the device was given, whoever else says otherwise; None for what `folder`
            holds as `root.json`.
        now_s: the time to judge expiry by (wall time, seconds): on a device that of its `TimeFloor`.
        clock: how long fetching takes.
        rotations_limit: how many root metadata after the anchor's, or the last seen, are taken up at once.
    """

    def __init__(
        self,
        folder: Path,
        source: MetadataSource,
        *,
        anchor: bytes | None,
        now_s: Callable[[], float],
        clock: Clock = SYSTEM_CLOCK,
        rotations_limit: int = _ROTATIONS_LIMIT,
    ) -> None:
        self._folder = folder
        self._source = source
        self._anchor = anchor
        self._now_s = now_s
        self._clock = clock
        self._config = UpdaterConfig(
            max_root_rotations=rotations_limit,
            root_max_length=LIMITS_BYTES["root"],
            timestamp_max_length=LIMITS_BYTES["timestamp"],
            snapshot_max_length=LIMITS_BYTES["snapshot"],
            targets_max_length=LIMITS_BYTES["targets"],
        )
        self._updater: _DurableUpdater | None = None
        self._fetcher = _Fetcher(source, clock)

    def refresh(self) -> dict[str, SignedFile]:
        """Takes up what is newest, and lists what is signed now, by path.

        Raises:
            SignatureError, MetadataRollbackError, MetadataExpiredError, MetadataMismatchError, IntegrityError: it
                must not be believed; what was believed before is still on the disk.
            LinkError: it could not be fetched.
            UpdateError: it cannot be kept; NoRoomError where the disk is full.
            FirstlineError: what else the source said.
        """
        fetcher = self._fetcher = _Fetcher(self._source, self._clock)
        self._updater = None
        updater: _DurableUpdater | None = None
        try:
            make_folder(self._folder)
            updater = _DurableUpdater(
                str(self._folder), "", fetcher=fetcher, config=self._config, bootstrap=self._anchor
            )
            updater.trusted.reference_time = datetime.fromtimestamp(self._now_s(), UTC)
            updater.refresh()
        except (exceptions.RepositoryError, exceptions.DownloadError) as error:
            raise refusal(error, fetcher.name, fetcher.content, updater.trusted if updater else None) from error
        except OSError as error:
            raise self._unkept(error) from error
        self._updater = updater
        return {
            path: SignedFile(path, found.length, found.hashes[_SHA256], found.custom or {})
            for path, found in updater.trusted.targets.targets.items()
            if _SHA256 in found.hashes
        }

    @property
    def versions(self) -> dict[str, int]:
        """The version of each role's metadata, after `refresh`."""
        trusted = self._refreshed.trusted
        return {signed.type: signed.version for signed in trusted}

    @property
    def expires_s(self) -> float:
        """When the first of the metadata ends (wall time, seconds), after `refresh`."""
        return min(signed.expires.timestamp() for signed in self._refreshed.trusted)

    @property
    def targets(self) -> Metadata[Targets]:
        """The targets metadata as it was signed, after `refresh`: whoever signs the next begins with it."""
        self._refreshed  # noqa: B018 (it must have been verified)
        return Metadata[Targets].from_file(str(self._folder / "targets.json"))

    @property
    def root(self) -> Root:
        """The root that is believed, after `refresh`."""
        return self._refreshed.trusted.root

    def find(self, path: str) -> TargetFile | None:
        """A target, those that others sign for (delegations) included, after `refresh`; None where there is none.

        Raises:
            UpdateError, LinkError: as `refresh`, of the metadata that has to be fetched for it.
        """
        updater = self._refreshed
        try:
            return updater.get_targetinfo(path)
        except (exceptions.RepositoryError, exceptions.DownloadError) as error:
            raise refusal(error, self._fetcher.name, self._fetcher.content, updater.trusted) from error
        except OSError as error:
            raise self._unkept(error) from error

    @property
    def _refreshed(self) -> _DurableUpdater:
        if self._updater is None:
            raise UpdateError("No metadata has been verified yet; refresh it first.")
        return self._updater

    def _unkept(self, error: OSError) -> UpdateError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return (NoRoomError if full else UpdateError)(
            f"Metadata cannot be kept in {self._folder}: {error.strerror or error}."
        )


class _DurableUpdater(Updater):
    """Whose files a power cut leaves whole, and which writes nothing that is there already: flash wears.

    python-tuf writes without fsync, and after a power cut takes an empty timestamp for none: what it had seen would be
    forgotten, and an older one be believed.
    """

    @property
    def trusted(self) -> TrustedMetadataSet:
        """The set of verified metadata; its `reference_time` is what expiry is judged by."""
        return self._trusted_set

    def _persist_file(self, filename: str, data: bytes) -> None:
        path = Path(filename)
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data)

    def _persist_root(self, version: int, data: bytes) -> None:
        self._check_keys()
        super()._persist_root(version, data)

    def _check_keys(self) -> None:
        if said := named_twice(self.trusted.root):
            raise exceptions.RepositoryError(f"{said}, which would sign for two")

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
    """python-tuf's port on ours; remembers what came last, for what is said where it is refused."""

    def __init__(self, source: MetadataSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self.name = "root.json"
        self.content = b""

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """In memory: python-tuf's own goes by a file."""
        self.name, self.content = url.rpartition("/")[2], b""
        parts, size_bytes = [], 0
        for part in self._fetch(self.name):
            size_bytes += len(part)
            if size_bytes > max_length:
                raise IntegrityError(
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
                if self._clock.monotonic_s() - start_s > _GRACE_S + size_bytes / _LEAST_BYTES_PER_S:
                    raise RemoteTimeoutError(
                        f"Only {size_bytes} bytes of {url} came in {self._clock.monotonic_s() - start_s:.0f} s; "
                        "it is tried again later."
                    )
                yield part
        except NotFoundError as error:
            raise exceptions.DownloadHTTPError(error.message, 404) from error
