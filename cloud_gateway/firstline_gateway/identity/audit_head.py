"""The audit log as the API shows it, and the signed head, which proves how far the log goes."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firstline_core.clock import Clock
from firstline_core.fleet.audit_log import Head
from firstline_core.fleet.rollout_documents import AuditPage
from firstline_gateway import audit_log
from firstline_gateway.identity import authorities, ca
from firstline_gateway.store.store import Store

KEY_FILE = "audit-log.key"


class AuditLog:
    """The audit log of one gateway, or of the replicas that share its store.

    Args:
        store: reads it.
        directory: of the authority, where the key is that signs heads; made when it is first asked for.
        clock: for wall time.
    """

    def __init__(self, store: Store, directory: Path, *, clock: Clock) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock

    async def page(self, wanted: audit_log.EntryFilter, limit: int) -> AuditPage:
        """Returns entries by number."""
        entries = await self._store.read(partial(audit_log.page, wanted=wanted, limit=limit))
        return AuditPage(tuple(entries), entries[-1].number if len(entries) == limit else None)

    async def note(self, actor: str, action: str, subject: str, details: dict[str, Any]) -> None:
        """Adds an entry about something that changes nothing else in the store."""
        now_s = self._clock.wall_s()
        await self._store.change(lambda on: audit_log.add(on, now_s, actor, action, subject, **details))

    async def note_export(self, actor: str, since_s: float) -> Head:
        """Notes an export from a wall time on, and returns the signed head with its first and last entry.

        Raises:
            ConfigError: there is no key, and none can be made.
        """
        first = await self._store.read(partial(audit_log.first_since, since_s=since_s))
        await self.note(actor, "audit.export", "audit", {"since_s": since_s, "first": first})
        return await self.head(first)

    async def head(self, first: int = 1) -> Head:
        """Returns the signed head: how far the log goes now.

        Args:
            first: number of the first entry of an export.

        Raises:
            ConfigError: there is no key, and none can be made.
        """
        newest = await self._store.read(audit_log.last)
        key = await asyncio.to_thread(open_key, self._directory)
        return sign(newest, key, self._clock.wall_s(), first)


def open_key(directory: Path) -> Ed25519PrivateKey:
    """Returns the key in the authority's folder, which replicas and backups share; creates it if missing. Blocks.

    Raises:
        ConfigError: the key cannot be created or read.
    """
    path = directory / KEY_FILE
    with authorities.locked(directory):
        if not path.exists():
            authorities.write(path, ca.key_pem(Ed25519PrivateKey.generate()), private=True)
    return authorities.read_signing_key(path, "a new one is made")


def sign(last: tuple[int, str], key: Ed25519PrivateKey, now_s: float, first: int = 1) -> Head:
    """Returns the signed head of a log, or of an export from `first` on, whose last entry has this number and hash."""
    public = key.public_key().public_bytes_raw().hex()
    return Head(*last, at_s=now_s, public_key=public, first=first).signed(key)
