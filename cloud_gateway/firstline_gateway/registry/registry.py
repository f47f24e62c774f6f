"""The registry of one gateway: files and signed metadata. Replicas that share store and files share it.

What devices believe is not decided here: a gateway serves what root and targets keys have signed, and cannot sign for
a model itself. What it checks, it checks so that whoever publishes is told, and not every device on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from hashlib import sha256
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import (
    ConflictError,
    FirstlineError,
    NotFoundError,
    NotReadyError,
    RequestError,
)
from firstline_core.fleet.expiry import AUTHORITY, warnings
from firstline_core.fleet.registry import BundleEntry, OnlineKey, RegistryStatus, RoleState
from firstline_core.fleet.target import SignedFile, bundles
from firstline_gateway.identity.folder import AuthorityFolder
from firstline_gateway.registry import online, records, signing
from firstline_gateway.registry.blobs import Blob, Blobs, checked
from firstline_gateway.registry.catalogue import Catalogue, entry_of, listed_files, names
from firstline_gateway.registry.records import Document
from firstline_gateway.settings import Registry as RegistrySettings
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import GroupWriter
from firstline_gateway.trail import records as trail

_ROLES = ("root", "targets", "snapshot", "timestamp")
_T = TypeVar("_T")


class Registry:
    """Asked on one event loop.

    Args:
        readers: of the store.
        writer: writes to it.
        blobs: where files are.
        folder: the identity folder, which has the online key.
        settings: the limits.
        clock: what time it is.
    """

    def __init__(
        self,
        readers: Readers,
        writer: GroupWriter,
        blobs: Blobs,
        folder: AuthorityFolder,
        settings: RegistrySettings,
        *,
        clock: Clock,
    ) -> None:
        self.blobs = blobs
        self.readers = readers
        self._writer = writer
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._catalogue = Catalogue(0, {})

    # Files

    async def put(self, digest: str, parts: AsyncIterable[bytes]) -> bool:
        """Keeps a file; False where it was there already, and was not read.

        Raises:
            RequestError: it is another file.
            PayloadTooLargeError: it is too large.
            StoreUnavailableError: it cannot be kept.
        """
        if await self.blobs.find(digest) is not None:
            return False
        await self.blobs.put(digest, checked(parts, digest, self._settings.blob_limit_bytes))
        return True

    async def blob(self, digest: str) -> Blob:
        """A file's size.

        Raises:
            NotFoundError: there is none.
        """
        found = await self.blobs.find(digest)
        if found is None:
            raise NotFoundError(f"The registry has no file {digest}.")
        return found

    def read(self, digest: str, start: int, end: int) -> AsyncIterator[bytes]:
        """A file's bytes from `start` to before `end`."""
        return self.blobs.read(digest, start, end)

    # Metadata

    async def metadata(self, name: str) -> Document:
        """Metadata by the name that devices ask for: "timestamp.json", "3.root.json".

        Raises:
            NotFoundError: there is none of this name.
        """
        stem, _, rest = name.partition(".")
        role, numbered = (rest.removesuffix(".json"), stem) if rest != "json" else (stem, "")
        found = None
        if role in _ROLES and name.endswith(".json"):
            if not numbered:
                found = await self._ask(lambda connection: records.newest(connection, role))
            elif numbered.isascii() and numbered.isdigit() and len(numbered) <= 18 and numbered[0] != "0":
                found = await self._ask(lambda connection: records.numbered(connection, role, int(numbered)))
        if found is None:
            raise NotFoundError(f"The registry has no metadata {name[:80]!a}.")
        return found

    async def publish(self, contents: Sequence[bytes], by: str) -> dict[str, int]:
        """Makes newly signed metadata current, all of it at once, with a snapshot and a timestamp of it.

        Args:
            contents: as `signing.accept` has them.
            by: the principal who does.

        Returns:
            The version of each role's metadata now.

        Raises:
            RequestError, ConflictError, SignatureError, MetadataExpiredError: see `signing.accept`.
            NotReadyError: this gateway has no online key that the root names.
        """
        root_now, targets_now = await self._ask(
            lambda connection: (records.newest(connection, "root"), records.newest(connection, "targets"))
        )
        now_s = self._clock.wall_s()
        accepted = await asyncio.to_thread(signing.accept, contents, root_now, targets_now, now_s)
        files = await asyncio.to_thread(listed_files, accepted.targets)
        before = (await self.catalogue()).files
        await self._check_files(files, before)
        signer = await asyncio.to_thread(online.signer_for, self._folder.directory, signing.online_keys(accepted.root))
        kept, said, had = set(bundles(files)), names(files), names(before)

        def put(connection: Connection) -> dict[str, int] | FirstlineError:
            records.lock(connection)
            for role, seen in (("root", root_now), ("targets", targets_now)):
                current = records.newest(connection, role)
                if (current.version if current else 0) != (seen.version if seen else 0):
                    return ConflictError("Somebody has published since; take up theirs and sign anew.")
            for alias in records.aliases(connection):
                if alias.version is not None and (alias.model, alias.version) not in kept:
                    return ConflictError(
                        f"The alias {alias.alias} stands for {alias.model} version {alias.version}, which the new "
                        "targets no longer list; set it to another version first, or remove it."
                    )
            versions = {role: version for role, (version, _) in records.heads(connection).items()}
            fresh = signing.signed_online(accepted.targets_content, signer, versions, now_s)
            records.put(connection, [*accepted.fresh, *fresh])
            trail.add(
                connection,
                at_s=now_s,
                actor=by,
                action="registry.publish",
                subject="registry",
                details={
                    "metadata": {
                        f"{one.role} {one.version}": sha256(one.content).hexdigest() for one in accepted.fresh
                    },
                    "added": sorted(said - had),
                    "removed": sorted(had - said),
                },
            )
            return {role: version for role, (version, _) in records.heads(connection).items()}

        return await self._write(put)

    async def renew(self, least_s: float) -> bool:
        """Signs a new snapshot and a new timestamp where one of the present ones ends within `least_s`.

        Raises:
            NotReadyError: this gateway has no online key that the root names.
        """
        now_s = self._clock.wall_s()
        heads = await self._ask(records.heads)
        if "timestamp" not in heads or not self._ends_soon(heads, now_s + least_s):
            return False
        root = await self._ask(lambda connection: records.newest(connection, "root"))
        keyids = signing.online_keys(signing.root_of(root.content)) if root is not None else set()
        signer = await asyncio.to_thread(online.signer_for, self._folder.directory, keyids)

        def put(connection: Connection) -> bool:
            records.lock(connection)
            heads = records.heads(connection)
            targets = records.newest(connection, "targets")
            if targets is None or not self._ends_soon(heads, now_s + least_s):
                return False  # another replica was first
            versions = {role: version for role, (version, _) in heads.items()}
            records.put(connection, signing.signed_online(targets.content, signer, versions, now_s))
            return True

        return await self._write(put)

    @staticmethod
    def _ends_soon(heads: dict[str, tuple[int, float]], until_s: float) -> bool:
        return any(heads[role][1] < until_s for role in ("snapshot", "timestamp"))

    async def online_key(self, *, fresh: bool) -> OnlineKey:
        """The public key that a root is to name for snapshot and timestamp; `fresh` for one that is not in use yet."""
        root = await self._ask(lambda connection: records.newest(connection, "root"))
        used = signing.online_keys(signing.root_of(root.content)) if root is not None else set()
        return await asyncio.to_thread(online.offered, self._folder.directory, fresh=fresh, used=used)

    # Bundles

    async def catalogue(self) -> Catalogue:
        """What the current targets list."""
        version = (await self._ask(records.heads)).get("targets", (0, 0.0))[0]
        if version != self._catalogue.version:
            found = await self._ask(lambda connection: records.newest(connection, "targets"))
            if found is not None:
                targets = await asyncio.to_thread(signing.targets_of, found.content)
                self._catalogue = Catalogue(found.version, signing.files_of(targets))
        return self._catalogue

    async def entries(self, after: tuple[str, int], limit: int, model: str = "") -> list[BundleEntry]:
        """Bundles by name and version, from the one behind `after` on."""
        files = (await self.catalogue()).files
        aliases = await self._ask(lambda connection: records.aliases(connection, model))
        named: dict[tuple[str, int], list[str]] = {}
        for alias in aliases:
            named.setdefault((alias.model, alias.version or 0), []).append(alias.alias)
        wanted = [key for key in bundles(files) if key > after and model in ("", key[0])][:limit]
        return [entry_of(files, key, tuple(named.get(key, ()))) for key in wanted]

    async def entry(self, name: str, version: int) -> BundleEntry:
        """One bundle.

        Raises:
            NotFoundError: it is not listed.
        """
        files = (await self.catalogue()).files
        aliases = await self._ask(lambda connection: records.aliases(connection, name))
        return entry_of(files, (name, version), tuple(one.alias for one in aliases if one.version == version))

    # How it is

    async def expiries(self) -> dict[str, float]:
        """When each role's metadata, and the devices' authority, end (wall time, seconds)."""
        found = {role: expires_s for role, (_, expires_s) in (await self._ask(records.heads)).items()}
        if self._folder.exists:
            authority = await asyncio.to_thread(self._folder.open)
            found[AUTHORITY] = authority.active.certificate.not_valid_after_utc.timestamp()
        return found

    async def status(self) -> RegistryStatus:
        """Versions, ends, warnings, and what the files take."""
        heads = await self._ask(records.heads)
        expiries = await self.expiries()
        root = await self._ask(lambda connection: records.newest(connection, "root"))
        keyid = None
        if root is not None:
            try:
                keyids = signing.online_keys(signing.root_of(root.content))
                signer = await asyncio.to_thread(online.signer_for, self._folder.directory, keyids)
                keyid = signer.public_key.keyid
            except NotReadyError:
                pass
        blobs = await self.blobs.all()
        return RegistryStatus(
            roles=tuple(RoleState(role, *heads[role]) for role in _ROLES if role in heads),
            online_key=keyid,
            authority_expires_s=expiries.get(AUTHORITY),
            warnings=tuple(warnings(expiries, self._clock.wall_s()).values()),
            blobs=len(blobs),
            blobs_bytes=sum(blob.size_bytes for blob in blobs),
        )

    async def sweep(self, grace_s: float) -> int:
        """Forgets files that nothing lists, and that are older than that: somebody may be about to list a new one."""
        wanted = {file.sha256 for file in (await self.catalogue()).files.values()}
        before_s = self._clock.wall_s() - grace_s
        gone = [blob for blob in await self.blobs.all() if blob.sha256 not in wanted and blob.came_s < before_s]
        for blob in gone:
            await self.blobs.remove(blob.sha256)
        return len(gone)

    async def _check_files(self, files: dict[str, SignedFile], before: dict[str, SignedFile]) -> None:
        """Whether what is newly listed can be fetched.

        Raises:
            RequestError: it cannot.
        """
        for path, file in files.items():
            if path in before and before[path].sha256 == file.sha256:
                continue
            found = await self.blobs.find(file.sha256)
            if found is None or found.size_bytes != file.size_bytes:
                raise RequestError(
                    f"The targets list {path} with the sha256 {file.sha256}, which the registry has not; send the file "
                    "before what is signed of it."
                )

    async def _ask(self, read: Callable[[Connection], _T]) -> _T:
        return await self.readers.ask(read)

    async def _write(self, operation: Callable[[Connection], _T | FirstlineError]) -> _T:
        return await written(self._writer, operation)


async def written(writer: GroupWriter, operation: Callable[[Connection], _T | FirstlineError]) -> _T:
    """What an operation made; its refusal is raised here, for in the writer it would undo others' work."""
    made = await asyncio.wrap_future(writer.submit(operation))
    if isinstance(made, FirstlineError):
        raise made
    return made
