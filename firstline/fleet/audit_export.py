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
from firstline_core.storage.files import naming
from firstline_core.storage.structs import fault_of

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
    _verify(entries, head, [])
    with naming(f"The export {file}", "written"):
        file.write_bytes(_csv(entries) if file.suffix == ".csv" else _jsonl(entries))
        head_of(file).write_bytes(msgspec.json.encode(head))


def check_key(head: Head, known: str) -> None:
    """Checks that a head is signed by a known key.

    Args:
        head: its signature is verified elsewhere.
        known: public key, in hexadecimal digits; "" if none is known.

    Raises:
        IntegrityError: another key signed the head.
    """
    if known and head.public_key != known.strip().lower():
        raise IntegrityError(
            f"Another key ({head.public_key}) than the known one signed the log: it was forged, or the gateway's "
            "identity folder was replaced."
        )


def verify_export(file: Path, head: Head, saved: Head | None = None) -> tuple[int, str]:
    """Verifies an export without the gateway.

    Args:
        file: the export.
        head: of the export. It proves the entries only if its key is known; see `check_key`.
        saved: another head of the log; its key must have signed the export, which must contain its entry if in range.
            An export that was signed later must not end before it.

    Returns:
        Number of entries, and hash of the last one.

    Raises:
        ConfigError: the file cannot be read.
        IntegrityError: an entry was changed, removed or inserted, or the head belongs to another log.
    """
    try:
        entries = _read(file.read_bytes())
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError, csv.Error, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{file} holds no export of an audit log: {fault_of(error)}; name the output of `firstline audit export`."
        ) from error
    heads = []
    if saved is not None:
        check_key(head, saved.public_key)
        saved.check_signature()
        if saved.number > head.number and saved.at_s <= head.at_s:
            raise IntegrityError(
                f"The export ends at entry {head.number}, but the saved head, which was signed before, is of entry "
                f"{saved.number}: the end of the log was cut off."
            )
        heads = [saved] if head.first - 1 <= saved.number <= head.number else []
    return len(entries), _verify(entries, head, heads)


def _verify(entries: list[Entry], head: Head, others: list[Head]) -> str:
    """Verifies that entries are those from the first to the last of a head; returns the hash of the last."""
    if not entries or entries[0].number != head.first:
        start = f"starts at entry {entries[0].number}" if entries else "is empty"
        raise IntegrityError(f"The export {start}, and its head says that it starts at entry {head.first}.")
    number, sha256 = verify_log(entries, [head, *others], whole=False)
    if number != head.number:
        raise IntegrityError(f"The export ends at entry {number}, and its head is of entry {head.number}.")
    return sha256


def _jsonl(entries: Iterable[Entry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def _csv(entries: Iterable[Entry]) -> bytes:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow([*Entry.__struct_fields__, *_ADDED])
    for entry in entries:
        writer.writerow(map(_cell, [*msgspec.structs.astuple(entry), *person_and_key(entry.actor)]))
    return text.getvalue().encode()


def _cell(value: object) -> str:
    """Returns the text of a cell; spreadsheets would run a text that begins like a formula."""
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "'")) else text


def _read(content: bytes) -> list[Entry]:
    if content.startswith(b"{"):
        return [msgspec.json.decode(line, type=Entry) for line in content.splitlines()]
    rows = csv.DictReader(StringIO(content.decode(), newline=""))
    names = Entry.__struct_fields__
    return [msgspec.convert({name: row[name].removeprefix("'") for name in names}, Entry, strict=False) for row in rows]
