"""The audit log: pages of it, and its head, signed with a key that serves for nothing else."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.fleet.audit_log import Head
from firstline_core.fleet.rollout import AuditPage
from firstline_core.storage.files import make_folder, sync_folder
from firstline_gateway.audit_log import records
from firstline_gateway.store.readers import Readers

KEY_FILE = "trail.key"


class AuditLog:
    """The audit log of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        directory: of the authority, where the key is that signs heads; made when it is first asked for.
        clock: for wall time.
    """

    def __init__(self, readers: Readers, directory: Path, *, clock: Clock) -> None:
        self._readers = readers
        self._directory = directory
        self._clock = clock

    async def page(self, after: int, limit: int, subject: str) -> AuditPage:
        """Returns entries by number."""
        found = await self._readers.ask(partial(records.page, after=after, limit=limit, subject=subject))
        return AuditPage(tuple(found), found[-1].number if len(found) == limit else None)

    async def head(self) -> Head:
        """Returns the signed head: how far the log goes now.

        Raises:
            ConfigError: there is no key, and none can be made.
        """
        last = await self._readers.ask(records.last)
        key = await asyncio.to_thread(open_key, self._directory)
        return sign(last, key, self._clock.wall_s())


def open_key(directory: Path) -> Ed25519PrivateKey:
    """Returns the key in the authority's folder, which replicas and backups share; creates it if missing. Blocks.

    Raises:
        ConfigError: the key cannot be created or read.
    """
    path = directory / KEY_FILE
    try:
        make_folder(directory)
        _make(path)
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used to sign the audit log: {error}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no Ed25519 key; move it away, and a new one is made.")
    return key


def sign(last: tuple[int, str], key: Ed25519PrivateKey, now_s: float) -> Head:
    """Returns the signed head of a log whose last entry has this number and hash."""
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    return Head(*last, at_s=now_s, public_key=public).signed(key)


def _make(path: Path) -> None:
    """Creates the key if missing; if two replicas do so at once, one key is kept."""
    if path.exists():
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    content = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    sync_folder(path.parent)
