"""The registry's signed metadata, published, renewed and shown. Replicas that share store and files share it.

The gateway does not decide what devices trust: a gateway serves what root and targets keys have signed, and cannot sign
for
a model itself. It checks metadata so that the publisher gets the error, instead of every device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TypeVar

from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import (
    ConflictError,
    NotFoundError,
    NotReadyError,
)
from firstline_core.fleet.registry import (
    AUTHORITY,
    DAY_S,
    HOUR_S,
    OnlineKey,
    RegistryStatus,
    RoleState,
    expiry_warnings,
)
from firstline_core.telemetry.logs import logger
from firstline_gateway import audit_log
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.registry import records, signing
from firstline_gateway.registry.aliases import Aliases
from firstline_gateway.registry.bundle_use import CONFIGURATION, MODEL, BundleUse, SignedVersion
from firstline_gateway.registry.catalogue import Catalogue, CatalogueReader, catalogue_of, check_listed, names
from firstline_gateway.registry.files import Files, open_blobs
from firstline_gateway.registry.records import Document
from firstline_gateway.registry.signing import ONLINE_LIFE
from firstline_gateway.settings.settings import Registry as RegistrySettings
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import StoreWriter

_ROLES = ("root", "targets", "snapshot", "timestamp")
_T = TypeVar("_T")


class Registry:
    """Asked on one event loop.

    Args:
        readers: of the store.
        writer: writes to it.
        files: the files of the registry.
        catalogue: reads the current targets.
        folder: the identity folder, which has the online key.
        in_use: knows which versions have to stay signed.
        clock: gives wall time.

    Attributes:
        files: the files of the registry.
        catalogue: reads the current targets.
        aliases: names for versions.
    """

    def __init__(
        self,
        readers: Readers,
        writer: StoreWriter,
        files: Files,
        catalogue: CatalogueReader,
        folder: AuthorityFolder,
        *,
        in_use: BundleUse,
        clock: Clock,
    ) -> None:
        self._readers = readers
        self._writer = writer
        self.files = files
        self.catalogue = catalogue
        self.aliases = Aliases(readers, writer, catalogue.current, clock=clock)
        self._folder = folder
        self._in_use = in_use
        self._clock = clock

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
        new = await asyncio.to_thread(catalogue_of, accepted.targets)
        await asyncio.to_thread(check_listed, new)
        before = await self.catalogue.current()
        await self.files.check(new.files, before.files)
        signer = await asyncio.to_thread(signing.signer_for, self._folder.directory, signing.online_keys(accepted.root))
        kept, said, had = set(new.bundles), names(new), names(before)
        gone = _versions(before) - _versions(new)

        def put(connection: Connection) -> dict[str, int]:
            records.lock(connection)
            for role, seen in (("root", root_now), ("targets", targets_now)):
                current = records.newest(connection, role)
                if (current.version if current else 0) != (seen.version if seen else 0):
                    raise ConflictError("Somebody has published since; take up theirs and sign anew.")
            for alias in records.aliases(connection):
                if alias.version is not None and (alias.model, alias.version) not in kept:
                    raise ConflictError(
                        f"The alias {alias.alias} stands for {alias.model} version {alias.version}, which the new "
                        "targets no longer list; set it to another version first, or remove it."
                    )
            if (reason := self._in_use.reason_to_keep(connection, gone)) is not None:
                raise ConflictError(reason)
            versions = {role: version for role, (version, _) in records.heads(connection).items()}
            fresh = signing.signed_online(accepted.targets_content, signer, versions, now_s)
            records.put(connection, [*accepted.fresh, *fresh])
            audit_log.add(
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

        return await self._writer.write(put)

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
        signer = await asyncio.to_thread(signing.signer_for, self._folder.directory, keyids)

        def put(connection: Connection) -> bool:
            records.lock(connection)
            heads = records.heads(connection)
            targets = records.newest(connection, "targets")
            if targets is None or not self._ends_soon(heads, now_s + least_s):
                return False  # another replica was first
            versions = {role: version for role, (version, _) in heads.items()}
            records.put(connection, signing.signed_online(targets.content, signer, versions, now_s))
            return True

        return await self._writer.write(put)

    @staticmethod
    def _ends_soon(heads: dict[str, tuple[int, float]], until_s: float) -> bool:
        return any(heads[role][1] < until_s for role in ("snapshot", "timestamp"))

    async def online_key(self, *, fresh: bool) -> OnlineKey:
        """The public key that a root is to name for snapshot and timestamp; `fresh` for one that is not in use yet."""
        root = await self._ask(lambda connection: records.newest(connection, "root"))
        used = signing.online_keys(signing.root_of(root.content)) if root is not None else set()
        return await asyncio.to_thread(signing.offered, self._folder.directory, fresh=fresh, used=used)

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
                signer = await asyncio.to_thread(signing.signer_for, self._folder.directory, keyids)
                keyid = signer.public_key.keyid
            except NotReadyError:
                pass
        blobs = await self.files.all()
        return RegistryStatus(
            roles=tuple(RoleState(role, *heads[role]) for role in _ROLES if role in heads),
            online_key=keyid,
            authority_expires_s=expiries.get(AUTHORITY),
            warnings=tuple(expiry_warnings(expiries, self._clock.wall_s()).values()),
            blobs=len(blobs),
            blobs_bytes=sum(blob.size_bytes for blob in blobs),
            limit_bytes=self.files.limit_bytes,
        )

    async def sweep(self, grace_s: float) -> int:
        """Forgets files that nothing lists: see `Files.sweep`."""
        return await self.files.sweep(
            {file.sha256 for file in (await self.catalogue.current()).files.values()}, grace_s
        )

    async def _ask(self, read: Callable[[Connection], _T]) -> _T:
        return await self._readers.ask(read)


def _versions(catalogue: Catalogue) -> set[SignedVersion]:
    models = {SignedVersion(MODEL, *key) for key in catalogue.bundles}
    others = {SignedVersion(CONFIGURATION, each.name, each.version) for each in catalogue.configurations}
    return models | others


def open_registry(
    settings: RegistrySettings,
    readers: Readers,
    writer: StoreWriter,
    folder: AuthorityFolder,
    *,
    in_use: BundleUse,
    clock: Clock,
) -> Registry:
    """Opens the registry that the settings name.

    Raises:
        ConfigError: its files cannot be opened.
    """
    blobs = open_blobs(settings.blobs, endpoint=settings.s3_endpoint, region=settings.s3_region)
    files = Files(blobs, settings, clock=clock)
    return Registry(readers, writer, files, CatalogueReader(readers), folder, in_use=in_use, clock=clock)


# Half of their life: a gateway that is away for less than the other half leaves no gap.
_RENEW_BEFORE_S = ONLINE_LIFE.total_seconds() / 2
# A push may take a day over a slow link before it lists what it has sent.
_UNLISTED_S = DAY_S
_SWEEP_INTERVAL_S = HOUR_S

log = logger(__name__)


class RegistryMaintenance:
    """Maintains one registry; `run` is called every minute.

    Args:
        registry: the registry.
        clock: decides what is due.

    Attributes:
        expiries: by role, when its metadata or the devices' authority expires, as last seen (wall time, seconds).
    """

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self.expiries: Mapping[str, float] = {}
        self._warned_s: dict[str, float] = {}
        self._swept_s = clock.monotonic_s()

    async def run(self) -> None:
        """Renews what expires soon, and warns once a day of what cannot be renewed here.

        Raises:
            FirstlineError: the store or the online key is away.
        """
        try:
            if await self._registry.renew(_RENEW_BEFORE_S):
                log.info("snapshot and timestamp renewed")
        finally:
            self.expiries = await self._registry.expiries()
            now_s = self._clock.wall_s()
            for role, sentence in expiry_warnings(self.expiries, now_s).items():
                if now_s - self._warned_s.get(role, 0.0) >= DAY_S:
                    self._warned_s[role] = now_s
                    log.warning("registry expiry", role=role, warning=sentence)
        if self._clock.monotonic_s() - self._swept_s >= _SWEEP_INTERVAL_S:
            self._swept_s = self._clock.monotonic_s()
            if deleted := await self._registry.sweep(_UNLISTED_S):
                log.info("unlisted files deleted", files=deleted)
