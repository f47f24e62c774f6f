"""Backs up the data of a gateway while it runs, and restores it into an empty store and folder.

The store is read in one transaction, and the authority's files under their lock, so each is of one moment. Files of the
operator (configuration, models, passwords, own TLS keys) are not in the backup.

The file is a ZIP archive, whose last member is the manifest. Nothing is restored before the checksums of all members
were verified. A table is a member with a line of JSON per row, in the same form for either database.
The tables are looked up in the database: a backup is restored into the schema from which it was made, then migrated.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, LargeBinary, MetaData, Table, func, insert, inspect, select, text

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import ConfigError, StoreUnavailableError
from firstline_core.storage.files import check_folder, sync_folder, system_reason, unreadable, unwritable, write_whole
from firstline_core.storage.structs import fault_of
from firstline_gateway import __version__
from firstline_gateway.identity import authorities
from firstline_gateway.rollouts import records
from firstline_gateway.rollouts.step import StepTime
from firstline_gateway.settings.settings import Settings, StoreSection
from firstline_gateway.store import service_clock
from firstline_gateway.store.database import connect, sqlite_file
from firstline_gateway.store.migrate import VERSION_TABLE, lock, migrate, schema_of
from firstline_gateway.tables import tables

FORMAT = 1
_MANIFEST = "manifest.json"
_STORE, _IDENTITY, _LINES = "store/", "identity/", ".jsonl"
_ROWS = 1000  # in one statement


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Describes the archive.

    Attributes:
        format: of the archive.
        firstline: the version that wrote it.
        created: when.
        schema: the store's, as alembic numbers it.
        modes: the permissions of each other member, which the archive's own checksums do not cover, by name.
        size_bytes: of those members, not compressed.
    """

    format: int
    firstline: str
    created: datetime
    schema: str
    modes: dict[str, int]
    size_bytes: int


@contextmanager
def writing(path: Path) -> Iterator[zipfile.ZipFile]:
    """Creates an archive that only this user can read; it is complete and durable, or does not exist.

    Raises:
        ConfigError: the file exists already, or cannot be written.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
        with os.fdopen(descriptor, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                yield archive
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, it replaces nothing
        sync_folder(path.parent)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already; a backup overwrites nothing: name another file.") from error
    except OSError as error:
        raise ConfigError(f"The backup {path} {unwritable(error)}") from error
    finally:
        with suppress(OSError):
            Path(temporary).unlink()


@contextmanager
def reading(path: Path) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """Opens an archive, after every byte of it was verified.

    Raises:
        ConfigError: it cannot be read, is damaged or no backup, or a newer version wrote it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive, _verified(path, archive)
    except OSError as error:
        raise ConfigError(f"The backup {path} {unreadable(error)}") from error
    except (zipfile.BadZipFile, zlib.error, msgspec.MsgspecError, KeyError, EOFError, RuntimeError) as error:
        raise ConfigError(f"{path} is damaged, or not a backup: {fault_of(error)}; use another copy.") from error


def _verified(path: Path, archive: zipfile.ZipFile) -> Manifest:
    content = archive.read(_MANIFEST)
    if (written := msgspec.json.decode(content, type=dict[str, object]).get("format")) != FORMAT:
        raise ConfigError(
            f"The backup {path} has format {written!r}; this version of Firstline reads {FORMAT}. Restore it with the "
            "version that wrote it."
        )
    manifest = msgspec.json.decode(content, type=Manifest)
    if sorted(archive.namelist()) != sorted((_MANIFEST, *manifest.modes)):
        raise zipfile.BadZipFile("it does not hold what its manifest lists")
    if (damaged := archive.testzip()) is not None:
        raise zipfile.BadZipFile(f"{damaged} is not what was backed up")
    return manifest


def tables_of(connection: Connection) -> list[Table]:
    """Returns all tables except the one with the version of the schema."""
    metadata = MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != VERSION_TABLE]


def is_empty(connection: Connection) -> bool:
    """Returns whether there is no table at all."""
    return not inspect(connection).get_table_names()


def lines(connection: Connection, table: Table) -> Iterator[bytes]:
    """Yields a line with the names of a table's columns, then an array of values per row."""
    yield msgspec.json.encode([str(column.name) for column in table.columns]) + b"\n"
    query = select(table).order_by(*table.primary_key.columns)
    for row in connection.execution_options(yield_per=_ROWS).execute(query):
        yield msgspec.json.encode(tuple(row)) + b"\n"  # bytes as base64


def fill(connection: Connection, table: Table, file: IO[bytes]) -> int:
    """Inserts the rows that `lines` yielded into an empty table; returns their number.

    Raises:
        ConfigError: they do not fit this table.
    """
    try:
        names = msgspec.json.decode(next(file), type=list[str])
        kinds = (bytes | None if isinstance(table.columns[name].type, LargeBinary) else Any for name in names)
        decoder: msgspec.json.Decoder[tuple[Any, ...]] = msgspec.json.Decoder(tuple[tuple(kinds)])  # type: ignore[misc]
        count = 0
        while batch := list(islice(file, _ROWS)):
            rows = [dict(zip(names, decoder.decode(line), strict=True)) for line in batch]
            connection.execute(insert(table), rows)
            count += len(rows)
    except (StopIteration, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"The backup's table {table.name} does not fit the store: {error}.") from error
    if connection.dialect.name == "postgresql":
        _restart_sequence(connection, table)
    return count


def _restart_sequence(connection: Connection, table: Table) -> None:
    """Lets PostgreSQL number new rows after the inserted ones."""
    for column in table.primary_key.columns:
        named = {"table": table.name, "column": column.name}
        sequence = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), named).scalar()
        newest = connection.execute(select(func.max(column))).scalar() if sequence else None
        if newest is not None:
            connection.execute(text("SELECT setval(:sequence, :newest)"), {"sequence": sequence, "newest": newest})


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: the archive's manifest, rows by table, and the ids of rollouts that were paused."""

    manifest: Manifest
    rows: dict[str, int]
    paused: list[str]


def back_up(settings: Settings, path: Path) -> Manifest:
    """Writes a backup.

    Args:
        settings: of the gateway, which may be running.
        path: of the file, which must not exist.

    Raises:
        ConfigError: there is no store yet, or the file cannot be written.
        StoreUnavailableError: the store refuses.
    """
    with writing(path) as archive:
        schema = _add_store(archive, settings.store)
        modes = dict.fromkeys(archive.namelist(), 0o600) | _add_identity(archive, Path(settings.identity.directory))
        created = datetime.now(UTC).replace(microsecond=0)
        size_bytes = sum(one.file_size for one in archive.infolist())
        manifest = Manifest(FORMAT, __version__, created, schema, modes, size_bytes)
        archive.writestr(_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        return manifest


def restore(settings: Settings, path: Path, *, only: Literal["store", "authority"] | None = None) -> Restored:
    """Restores a backup; the store may be on another database than it was.

    Args:
        settings: of a stopped gateway; the files and the store to restore must be absent.
        path: of the backup.
        only: restore one of both; the other is newer than the backup.

    Raises:
        ConfigError: the file is damaged, or the target is not empty; nothing was restored.
    """
    with reading(path) as (archive, manifest):
        directory = Path(settings.identity.directory)
        files = [] if only == "store" else _identity_names(manifest, path)
        if files:
            check_folder(directory, "identity.directory")
        if files and directory.exists() and any(not one.name.startswith(".") for one in directory.iterdir()):
            raise ConfigError(
                f"identity.directory {directory} is not empty; a restore overwrites nothing. Put it aside."
            )
        if only == "authority" and not files:
            raise ConfigError(f"{path} holds no authority; the gateway had none when it was backed up.")
        rows, paused = ({}, []) if only == "authority" else _restore_store(archive, manifest, settings.store)
        for name in files:
            _write(directory / PurePosixPath(name).name, archive.read(name), manifest.modes[name])
        return Restored(manifest, rows, paused)


def _add(archive: zipfile.ZipFile, name: str, parts: Iterable[bytes]) -> None:
    with archive.open(name, "w", force_zip64=True) as content:
        content.writelines(parts)


def _add_store(archive: zipfile.ZipFile, store: StoreSection) -> str:
    existing = sqlite_file(store)
    if existing is not None and not existing.exists():
        raise ConfigError(f"There is no store at {existing} yet; a gateway makes it when it starts.")
    with closing(connect(store)) as database, database.snapshot() as connection:
        schema = schema_of(connection)
        if schema is None:
            raise ConfigError(f"There is no store in {database.shown} yet; a gateway makes it when it starts.")
        for table in tables_of(connection):
            _add(archive, f"{_STORE}{table.name}{_LINES}", lines(connection, table))
        return schema


def _add_identity(archive: zipfile.ZipFile, directory: Path) -> dict[str, int]:
    """Adds the authority's files; returns their permissions by name."""
    modes: dict[str, int] = {}
    if not directory.exists():
        return modes
    with authorities.locked(directory):
        for found in sorted(directory.iterdir()):
            if found.is_file() and not found.name.startswith("."):
                _add(archive, _IDENTITY + found.name, [authorities.read(found)])
                modes[_IDENTITY + found.name] = found.stat().st_mode & 0o777
    return modes


def _restore_store(
    archive: zipfile.ZipFile, manifest: Manifest, store: StoreSection
) -> tuple[dict[str, int], list[str]]:
    existing = sqlite_file(store)
    if existing is not None and existing.exists():
        raise ConfigError(f"There is a store at {existing} already; a restore overwrites nothing. Put it aside.")
    database = connect(store)
    done = False
    try:
        with database.begin() as connection:
            lock(connection)
            if not is_empty(connection):
                raise ConfigError(
                    f"The database {database.shown} is not empty; a restore overwrites nothing. Name a new one."
                )
            migrate(connection, tables, manifest.schema)
            rows = {}
            for table in tables_of(connection):
                name = f"{_STORE}{table.name}{_LINES}"
                if name not in archive.namelist():
                    raise ConfigError(f"The backup has no table {table.name}, which schema {manifest.schema} has.")
                connection.execute(table.delete())  # rows that a migration inserts are in the backup, too
                with archive.open(name) as content:
                    rows[table.name] = fill(connection, table, content)
            migrate(connection, tables)
            now = StepTime(service_clock.read(connection), SYSTEM_CLOCK.wall_s())
            paused = records.pause_restored(connection, manifest.created.isoformat(), now)
        done = True
        return rows, paused
    except StoreUnavailableError as error:
        raise ConfigError(f"The backup is not restored. {error.message}") from error
    finally:
        database.close()
        if existing is not None and not done:
            existing.unlink(missing_ok=True)


def _identity_names(manifest: Manifest, path: Path) -> list[str]:
    names = [name for name in manifest.modes if name.startswith(_IDENTITY)]
    for name in names:
        plain = PurePosixPath(name).name
        if name != _IDENTITY + plain or plain.startswith("."):
            raise ConfigError(f"{path} is no backup: it would write {name!a}.")
    return names


def _write(path: Path, content: bytes, mode: int) -> None:
    """Writes a file of the identity folder, with the owner of the folder."""
    try:
        with authorities.locked(path.parent):
            write_whole(path, content, folder_owners_mode=mode & 0o777)
    except OSError as error:
        raise ConfigError(f"{path} cannot be restored: {system_reason(error)}.") from error
