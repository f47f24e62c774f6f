"""The store's tables as lines of JSON, in the same form for either database, and back.

The tables are looked up in the database, so that a backup is read into the schema that it was made of, whatever came
later; only then is that brought up to date.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec
from sqlalchemy import Connection, LargeBinary, MetaData, Table, func, insert, inspect, select, text

from firstline_core.errors import ConfigError, StoreUnavailableError
from firstline_gateway.commands.backup import archive
from firstline_gateway.commands.backup.archive import Manifest, Reading, Writing
from firstline_gateway.identity import authorities
from firstline_gateway.settings.settings import Settings, Store
from firstline_gateway.store.database import connect, sqlite_file
from firstline_gateway.store.migrate import VERSION_TABLE, lock, migrate, schema_of

_ROWS = 1000


def tables_of(connection: Connection) -> list[Table]:
    """All but the one in which the schema's version is."""
    found = MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name != VERSION_TABLE]


def is_empty(connection: Connection) -> bool:
    """Whether there is no table at all."""
    return not inspect(connection).get_table_names()


def lines(connection: Connection, table: Table) -> Iterator[bytes]:
    """A table's rows, each an array of its columns' values on a line of its own, after a line with their names."""
    yield msgspec.json.encode([str(column.name) for column in table.columns]) + b"\n"
    query = select(table).order_by(*table.primary_key.columns)
    for row in connection.execution_options(yield_per=_ROWS).execute(query):
        yield msgspec.json.encode(tuple(row)) + b"\n"  # bytes as base64


def fill(connection: Connection, table: Table, file: IO[bytes]) -> int:
    """Puts rows, as `lines` gave them, into an empty table; how many.

    Raises:
        ConfigError: they are not this table's.
    """
    try:
        names = msgspec.json.decode(next(file), type=list[str])
        binary = [isinstance(table.columns[name].type, LargeBinary) for name in names]
        count = 0
        while some := list(islice(file, _ROWS)):
            rows = [dict(zip(names, map(_value, msgspec.json.decode(line), binary), strict=True)) for line in some]
            connection.execute(insert(table), rows)
            count += len(rows)
    except (StopIteration, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"The backup's table {table.name} does not fit the store: {error}.") from error
    if connection.dialect.name == "postgresql":
        _count_on(connection, table)
    return count


def _value(value: Any, binary: bool) -> Any:
    return base64.b64decode(value, validate=True) if binary and value is not None else value


def _count_on(connection: Connection, table: Table) -> None:
    """Has PostgreSQL number new rows after those that were put in."""
    for column in table.primary_key.columns:
        named = {"table": table.name, "column": column.name}
        sequence = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), named).scalar()
        newest = connection.execute(select(func.max(column))).scalar() if sequence else None
        if newest is not None:
            connection.execute(text("SELECT setval(:sequence, :newest)"), {"sequence": sequence, "newest": newest})


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
            for table in tables_of(connection):
                file.add(f"{_STORE}{table.name}{_LINES}", lines(connection, table))
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
            if not is_empty(connection):
                raise ConfigError(
                    f"The database {database.shown} is not empty; a restore overwrites nothing. Name a new one."
                )
            migrate(connection, file.manifest.schema)
            rows = {}
            for table in tables_of(connection):
                name = f"{_STORE}{table.name}{_LINES}"
                if name not in file.manifest.members:
                    raise ConfigError(f"The backup has no table {table.name}, which schema {file.manifest.schema} has.")
                connection.execute(table.delete())  # what a migration puts in, the backup has too
                with file.open(name) as content:
                    rows[table.name] = fill(connection, table, content)
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
