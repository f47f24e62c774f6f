"""The registry's signed metadata: published, renewed and shown. Replicas that share store and files share it.

The gateway does not decide what devices trust: it serves what root and targets keys have signed, and cannot sign for a
model itself. It checks metadata so that the publisher gets the error, instead of every device.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import Connection
from tuf.api.metadata import Root

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, ConflictError, NotFoundError, NotReadyError
from firstline_core.fleet import registry as wire
from firstline_core.fleet.update import UpdateKind
from firstline_core.telemetry.logs import logger
from firstline_core.units import DAY_S, HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.registry import records, signing
from firstline_gateway.registry.aliases import Aliases
from firstline_gateway.registry.bundle_use import BundleUse, SignedVersion
from firstline_gateway.registry.catalogue import Catalogue, CatalogueReader, catalogue_of, check_listed
from firstline_gateway.registry.files import Blobs, Files, LocalBlobs
from firstline_gateway.registry.records import RoleHead, SignedMetadata
from firstline_gateway.store.store import Store

_ROLES = ("root", "targets", "snapshot", "timestamp")
_METADATA_NAME = re.compile(rf"(?:([1-9][0-9]{{0,17}})\.)?({'|'.join(_ROLES)})\.json")
# Half of their life: a gateway that is away for less than the other half leaves no gap.
_RENEW_BEFORE_S = signing.ONLINE_LIFE.total_seconds() / 2
# A push may take a day over a slow link before it lists the files that it has sent.
_UNLISTED_S = DAY_S
_SWEEP_INTERVAL_S = HOUR_S

log = logger(__name__)


@dataclass(eq=False)
class Registry:
    """The registry of one gateway. Used on one event loop.

    Args:
        store: reads and writes it.
        files: the files of bundles.
        folder: the identity folder, which has the online key.
        in_use: knows which versions have to stay signed.
        clock: gives wall and monotonic time.

    Attributes:
        files: the files of bundles.
        catalogue: reads the current targets.
        aliases: names for versions.
        latest_expiries: by role, when its metadata or the devices' authority expires, as `maintain` last read it (wall
            time, seconds).
    """

    store: Store
    files: Files
    folder: AuthorityFolder
    in_use: BundleUse
    clock: Clock

    def __post_init__(self) -> None:
        self.catalogue = CatalogueReader(self.store)
        self.aliases = Aliases(self.store, self.catalogue, clock=self.clock)
        self.latest_expiries: Mapping[str, float] = {}
        self._warned_s: dict[str, float] = {}
        self._swept_s = self.clock.monotonic_s()

    async def metadata(self, name: str) -> SignedMetadata:
        """Returns metadata by the name that devices ask for: "timestamp.json", "3.root.json".

        Raises:
            NotFoundError: there is none of this name.
        """
        document = None
        if named := _METADATA_NAME.fullmatch(name):
            number, role = named.groups()
            numbered = partial(records.numbered, role=role, version=int(number or 0))
            document = await (self.store.read(numbered) if number else self._newest(role))
        if document is None:
            raise NotFoundError(
                f"The registry has no metadata {name[:80]!a}; ask for ROLE.json or NUMBER.ROLE.json, where ROLE is one "
                f"of {', '.join(_ROLES)} and NUMBER a published version."
            )
        return document

    async def publish(self, contents: Sequence[bytes], by: str) -> dict[str, int]:
        """Makes newly signed metadata current in one transaction, with a snapshot and a timestamp of it.

        Args:
            contents: as in `signing.accept`.
            by: the principal that publishes.

        Returns:
            The version of each role's metadata now.

        Raises:
            RequestError, ConflictError, SignatureError, MetadataExpiredError: see `signing.accept`.
            NotReadyError: this gateway has no online key that the root names.
        """
        root_now, targets_now = await self._newest("root"), await self._newest("targets")
        now_s = self.clock.wall_s()
        accepted = await asyncio.to_thread(signing.accept, contents, root_now, targets_now, now_s)
        after = await asyncio.to_thread(catalogue_of, accepted.targets)
        await asyncio.to_thread(check_listed, after)
        before = await self.catalogue.current()
        await self.files.check(after.files, before.files)
        signer = await asyncio.to_thread(signing.signer_for, self.folder.directory, signing.online_keys(accepted.root))
        removed, added = _versions(before) - _versions(after), _versions(after) - _versions(before)
        details = {
            "metadata": {
                f"{one.role} {one.version}": hashlib.sha256(one.content).hexdigest() for one in accepted.fresh
            },
            "added": sorted(map(_words, added)),
            "removed": sorted(map(_words, removed)),
        }

        def put(connection: Connection) -> dict[str, int]:
            records.lock(connection)
            for role, verified_with in (("root", root_now), ("targets", targets_now)):
                current = records.newest(connection, role)
                if (current.version if current else 0) != (verified_with.version if verified_with else 0):
                    raise ConflictError("Somebody has published since; take up theirs and sign anew.")
            for alias in records.aliases(connection):
                if alias.version is not None and (alias.model, alias.version) not in after.bundles:
                    raise ConflictError(
                        f"The alias {alias.alias} points to {alias.model} version {alias.version}, which the new "
                        "targets no longer list; set it to another version first, or remove it."
                    )
            if (reason := self.in_use(connection, removed)) is not None:
                raise ConflictError(reason)
            online = signing.signed_online(accepted.targets_content, signer, records.heads(connection), now_s)
            records.put(connection, [*accepted.fresh, *online])
            audit_log.add(connection, now_s, by, "registry.publish", "registry", **details)
            return {role: head.version for role, head in records.heads(connection).items()}

        return await self.store.change(put)

    async def renew(self, least_s: float) -> bool:
        """Signs a new snapshot and a new timestamp if one of the present ones ends within `least_s`.

        Raises:
            NotReadyError: this gateway has no online key that the root names.
        """
        now_s = self.clock.wall_s()

        def is_due(heads: Mapping[str, RoleHead]) -> bool:
            return any(heads[role].expires_s < now_s + least_s for role in ("snapshot", "timestamp") if role in heads)

        if not is_due(await self.store.read(records.heads)):
            return False
        signer = await asyncio.to_thread(signing.signer_for, self.folder.directory, await self._online_keys())

        def put(connection: Connection) -> bool:
            records.lock(connection)
            heads = records.heads(connection)
            targets = records.newest(connection, "targets")
            if targets is None or not is_due(heads):
                return False  # another replica was first
            records.put(connection, signing.signed_online(targets.content, signer, heads, now_s))
            return True

        return await self.store.write(put)

    async def maintain(self) -> None:
        """Renews what expires soon, warns once a day of what cannot be renewed here, and deletes unlisted files.

        Raises:
            FirstlineError: the store or the online key is not available.
        """
        try:
            if await self.renew(_RENEW_BEFORE_S):
                log.info("snapshot and timestamp renewed")
        finally:
            self.latest_expiries = await self.expiries()
            now_s = self.clock.monotonic_s()
            for role, sentence in wire.expiry_warnings(self.latest_expiries, self.clock.wall_s()).items():
                if now_s - self._warned_s.get(role, -DAY_S) >= DAY_S:
                    self._warned_s[role] = now_s
                    log.warning("registry expiry", role=role, warning=sentence)
        if self.clock.monotonic_s() - self._swept_s >= _SWEEP_INTERVAL_S:
            self._swept_s = self.clock.monotonic_s()
            if deleted := await self.sweep(_UNLISTED_S):
                log.info("unlisted files deleted", files=deleted)

    async def online_key(self, *, fresh: bool) -> wire.OnlineKey:
        """Returns the public key that a root must name for snapshot and timestamp; `fresh` for one never named yet."""
        roots = await self.store.read(records.roots) if fresh else []
        used = set().union(*(signing.online_keys(signing.root_of(root.content)) for root in roots))
        return await asyncio.to_thread(signing.offered_key, self.folder.directory, used)

    async def expiries(self) -> dict[str, float]:
        """Returns when each role's metadata, and the devices' authority, expire (wall time, seconds)."""
        heads = await self.store.read(records.heads)
        expiries = {role: head.expires_s for role, head in heads.items()}
        if self.folder.exists:
            authority = await asyncio.to_thread(self.folder.open)
            expiries[wire.AUTHORITY] = authority.active.certificate.not_valid_after_utc.timestamp()
        return expiries

    async def status(self) -> wire.RegistryStatus:
        """Returns the versions and expiry of the metadata, warnings, and the size of the files."""
        heads = await self.store.read(records.heads)
        expiries = await self.expiries()
        try:
            signer = await asyncio.to_thread(signing.signer_for, self.folder.directory, await self._online_keys())
            keyid = signer.public_key.keyid
        except NotReadyError:
            keyid = None
        blobs = await self.files.all()
        return wire.RegistryStatus(
            roles=tuple(wire.RoleState(role, *heads[role]) for role in _ROLES if role in heads),
            online_key=keyid,
            authority_expires_s=expiries.get(wire.AUTHORITY),
            warnings=tuple(wire.expiry_warnings(expiries, self.clock.wall_s()).values()),
            blobs=len(blobs),
            blobs_bytes=sum(blob.size_bytes for blob in blobs),
            limit_bytes=self.files.limit_bytes,
        )

    async def sweep(self, grace_s: float) -> int:
        """Deletes unlisted files: see `Files.sweep`."""
        catalogue = await self.catalogue.current()
        return await self.files.sweep({file.sha256 for file in catalogue.files.values()}, grace_s)

    async def _newest(self, role: str) -> SignedMetadata | None:
        return await self.store.read(lambda connection: records.newest(connection, role))

    async def _online_keys(self) -> set[str]:
        """Returns the ids of the online keys that the current root names."""
        root = await self._newest(Root.type)
        return signing.online_keys(signing.root_of(root.content)) if root is not None else set()


def _versions(catalogue: Catalogue) -> set[SignedVersion]:
    models = {SignedVersion(UpdateKind.MODEL, *key) for key in catalogue.bundles}
    others = {SignedVersion(UpdateKind.CONFIGURATION, each.name, each.version) for each in catalogue.configurations}
    return models | others


def _words(signed: SignedVersion) -> str:
    """Returns a version as the audit log has it."""
    return f"{'' if signed.what is UpdateKind.MODEL else 'configuration '}{signed.name} {signed.version}"


def open_blobs(where: str, *, endpoint: str = "", region: str = "") -> Blobs:
    """Opens the setting `registry.blobs`: a folder, or s3://BUCKET/PREFIX.

    Raises:
        ConfigError: it cannot be used, or its library is missing.
    """
    if not where.startswith("s3://"):
        return LocalBlobs(Path(where))
    parts = urlsplit(where)
    if not parts.hostname:
        raise ConfigError(f'registry.blobs is {where!a}, without a bucket; write "s3://BUCKET/PREFIX".')
    try:
        from firstline_gateway.registry.s3 import S3Blobs
    except ImportError as error:
        raise ConfigError(
            "registry.blobs names an S3 store, and its library is missing: pip install 'firstline[s3]'."
        ) from error
    return S3Blobs(parts.hostname, parts.path.strip("/"), endpoint=endpoint, region=region)
