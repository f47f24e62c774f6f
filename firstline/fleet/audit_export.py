"""Exports of the audit log: JSON lines or CSV, with the signed head in a file next to it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import msgspec

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.fleet.audit_log import Entry, Head, verify_log
from firstline_core.fleet.persons import person_and_key

_ADDED = ("person", "key")
"""Columns of a CSV file that repeat parts of the actor for people."""


def time_of(text: str) -> float:
    """Returns a typed time in seconds since 1970; 0 for "".

    Raises:
        ConfigError: the text is not a time.
    """
    try:
        found = datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
    except ValueError as error:
        raise ConfigError(
            f"--since {text[:40]!a} is not a time; write it like 2026-01-31 or 2026-01-31T08:00 (UTC)."
        ) from error
    return max(0.0, (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())


def head_of(file: Path) -> Path:
    """Returns the file with the head of an export."""
    return file.with_name(f"{file.name}.head.json")


def write_export(file: Path, entries: list[Entry], head: Head) -> None:
    """Writes entries and their head; a file that ends with ".csv" is CSV, any other has a JSON object a line.

    Raises:
        IntegrityError: the gateway's entries do not fit its head.
        ConfigError: a file cannot be written.
    """
    verify_log(entries, [head], whole=False)
    try:
        file.write_bytes(_csv(entries) if file.suffix == ".csv" else _jsonl(entries))
        head_of(file).write_bytes(msgspec.json.encode(head))
    except OSError as error:
        raise ConfigError(f"The export cannot be written to {file}: {error.strerror}.") from error


def verify_export(file: Path, head: Head) -> tuple[int, str]:
    """Verifies an export without the gateway.

    Returns:
        Number of entries, and hash of the last one.

    Raises:
        ConfigError: the file cannot be read.
        IntegrityError: an entry was changed, removed or inserted, or the head belongs to another log.
    """
    try:
        entries = _read(file.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise ConfigError(f"{file} holds no export of an audit log: {error}.") from error
    number, sha256 = verify_log(entries, [head], whole=False)
    if number != head.number:
        raise IntegrityError(f"{file} ends at entry {number}, and its head is of entry {head.number}.")
    return len(entries), sha256


def _jsonl(entries: Iterable[Entry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def _csv(entries: Iterable[Entry]) -> bytes:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow([*Entry.__struct_fields__, *_ADDED])
    for entry in entries:
        writer.writerow([*msgspec.structs.astuple(entry), *person_and_key(entry.actor)])
    return text.getvalue().encode()


def _read(content: bytes) -> list[Entry]:
    if content.startswith(b"{"):
        return [msgspec.json.decode(line, type=Entry) for line in content.splitlines()]
    rows = csv.DictReader(StringIO(content.decode(), newline=""))
    names = Entry.__struct_fields__
    return [msgspec.convert({name: row[name] for name in names}, Entry, strict=False) for row in rows]
