"""Backs up what a gateway must not forget, while it runs, and restores it where there is nothing yet.

The store is read in one transaction, so that it is of one moment; the authority's files under the lock of those who
change them. Files of the operator (configuration, models, passwords, own TLS keys) are not in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from firstline_core.errors import ConfigError, StoreUnavailableError
from firstline_gateway.commands.backup import archive, tables
from firstline_gateway.commands.backup.archive import Manifest, Reading, Writing
from firstline_gateway.identity import authorities
from firstline_gateway.settings.settings import Settings, Store
from firstline_gateway.store.database import connect, sqlite_file
from firstline_gateway.store.migrate import lock, migrate, schema_of

_STORE, _IDENTITY = "store/", "identity/"
_LINES = ".jsonl"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: the archive's manifest, and rows by table."""

    manifest: Manifest
    rows: dict[str, int]


def back_up(settings: Settings, path: Path) -> Manifest:
    """Writes a backup.

    Args:
        settings: of the gateway, which may be running.
        path: of the file, which must not exist.

    Raises:
        ConfigError: there is no store yet, or the file cannot be written.
        StoreUnavailableError: the store refuses.
    """
    with archive.writing(path) as file:
        schema = _add_store(file, settings.store)
        _add_identity(file, Path(settings.identity.directory))
        return file.finish(datetime.now(UTC).replace(microsecond=0), schema)


def restore(settings: Settings, path: Path, *, authority_only: bool = False) -> Restored:
    """Restores a backup; the store may be on another database than it was.

    Args:
        settings: of a gateway that does not run, whose store and authority are not there.
        path: of the backup.
        authority_only: leaves the store alone, which has what came after the backup.

    Raises:
        ConfigError: the file is damaged, or the target is not empty; nothing was restored.
    """
    with archive.reading(path) as file:
        directory = Path(settings.identity.directory)
        names = _identity_names(file, path)
        if names and directory.exists() and any(not one.name.startswith(".") for one in directory.iterdir()):
            raise ConfigError(
                f"identity.directory {directory} is not empty; a restore overwrites nothing. Put it aside."
            )
        if authority_only and not names:
            raise ConfigError(f"{path} holds no authority; the gateway had none when it was backed up.")
        rows = {} if authority_only else _restore_store(file, settings.store)
        for name in names:
            member = file.manifest.members[name]
            with file.open(name) as content:
                _write(directory / PurePosixPath(name).name, content.read(), member.mode)
        return Restored(file.manifest, rows)


def _add_store(file: Writing, store: Store) -> str:
    existing = sqlite_file(store)
    if existing is not None and not existing.exists():
        raise ConfigError(f"There is no store at {existing} yet; a gateway makes it when it starts.")
    database = connect(store)
    try:
        with database.snapshot() as connection:
            schema = schema_of(connection)
            if schema is None:
                raise ConfigError(f"There is no store in {database.shown} yet; a gateway makes it when it starts.")
            for table in tables.tables_of(connection):
                file.add(f"{_STORE}{table.name}{_LINES}", tables.lines(connection, table))
            return schema
    finally:
        database.close()


def _add_identity(file: Writing, directory: Path) -> None:
    if not directory.exists():
        return
    with authorities.locked(directory):
        for found in sorted(directory.iterdir()):
            if found.is_file() and not found.name.startswith("."):
                file.add(_IDENTITY + found.name, _content(found), found.stat().st_mode & 0o777)


def _content(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while part := file.read(_CHUNK_BYTES):
                yield part
    except OSError as error:
        raise ConfigError(f"{path} cannot be backed up: {error.strerror}.") from error


def _restore_store(file: Reading, store: Store) -> dict[str, int]:
    existing = sqlite_file(store)
    if existing is not None and existing.exists():
        raise ConfigError(f"There is a store at {existing} already; a restore overwrites nothing. Put it aside.")
    database = connect(store)
    done = False
    try:
        with database.begin() as connection:
            lock(connection)
            if not tables.is_empty(connection):
                raise ConfigError(
                    f"The database {database.shown} is not empty; a restore overwrites nothing. Name a new one."
                )
            migrate(connection, file.manifest.schema)
            rows = {}
            for table in tables.tables_of(connection):
                name = f"{_STORE}{table.name}{_LINES}"
                if name not in file.manifest.members:
                    raise ConfigError(f"The backup has no table {table.name}, which schema {file.manifest.schema} has.")
                connection.execute(table.delete())  # what a migration puts in, the backup has too
                with file.open(name) as content:
                    rows[table.name] = tables.fill(connection, table, content)
            migrate(connection)
        done = True
        return rows
    except StoreUnavailableError as error:
        raise ConfigError(f"The backup is not restored. {error.message}") from error
    finally:
        database.close()
        if existing is not None and not done:
            existing.unlink(missing_ok=True)


def _identity_names(file: Reading, path: Path) -> list[str]:
    names = [name for name in file.manifest.members if name.startswith(_IDENTITY)]
    for name in names:
        plain = PurePosixPath(name).name
        if name != _IDENTITY + plain or plain.startswith("."):
            raise ConfigError(f"{path} is no backup: it would write {name!a}.")
    return names


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file, on the disk, of the folder's owner."""
    try:
        with authorities.locked(path.parent):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o777)
            with os.fdopen(descriptor, "wb") as stream:
                if os.geteuid() == 0:
                    owner = path.parent.stat()
                    os.fchown(stream.fileno(), owner.st_uid, owner.st_gid)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
    except OSError as error:
        raise ConfigError(f"{path} cannot be restored: {error.strerror}.") from error
