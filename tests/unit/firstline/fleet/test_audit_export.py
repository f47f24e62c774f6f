"""Exports of the audit log verify without the gateway, and show any change."""

import csv
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec.structs import replace

from firstline.fleet.audit_export import head_of, time_of, verify_export, write_export
from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.fleet.audit_log import FIRST, Entry, Head, next_entry

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def log() -> list[Entry]:
    entries: list[Entry] = []
    for number in range(6):
        last = (entries[-1].number, entries[-1].sha256) if entries else (0, FIRST)
        actor, details = "anna@example.org via application:console", '{"why": "a, \\"b\\"\\nc"}'
        entries.append(
            next_entry(
                last, at_s=1.7e9 + number / 3, actor=actor, action="device.tag", subject="device:ä", details=details
            )
        )
    return entries


def head(entries: list[Entry]) -> Head:
    return Head(entries[-1].number, entries[-1].sha256, 1.7e9, PUBLIC, first=entries[0].number).signed(KEY)


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
@pytest.mark.parametrize("start", [0, 3])
def test_an_export_verifies_from_any_entry(name: str, start: int, tmp_path: Path) -> None:
    entries, file = log()[start:], tmp_path / name
    write_export(file, entries, head(entries))
    assert head_of(file).exists()
    assert verify_export(file, head(entries)) == (6 - start, entries[-1].sha256)


@pytest.mark.parametrize("name", ["log.jsonl", "log.csv"])
@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [line.replace("anna", "eve") for line in lines],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: lines[:-1],
        lambda lines: [*(line for line in lines[:1] if line.startswith("number")), *lines[3:]],
        lambda lines: [*lines, lines[-1]],
    ],
    ids=["changed", "removed", "cut off", "beginning cut off", "repeated"],
)
def test_a_changed_export_is_refused(name: str, change: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    entries, file = log(), tmp_path / name
    write_export(file, entries, head(entries))
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(change(lines)))
    with pytest.raises(IntegrityError):
        verify_export(file, head(entries))


def test_a_forged_export_is_refused_by_a_head_saved_earlier(tmp_path: Path) -> None:
    entries, file, other = log(), tmp_path / "log.csv", Ed25519PrivateKey.generate()
    public = other.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    forged = Head(6, entries[-1].sha256, 1.7e9, public).signed(other)
    write_export(file, entries, forged)
    assert verify_export(file, forged)[0] == 6  # nothing tells whose key it is
    with pytest.raises(IntegrityError, match="Another key"):
        verify_export(file, forged, head(entries[:2]))
    with pytest.raises(IntegrityError, match="not the one that was signed"):
        verify_export(file, head(entries), Head(2, FIRST, 1.7e9, PUBLIC).signed(KEY))
    assert verify_export(file, head(entries), head(entries[:2]))[0] == 6


def test_a_log_without_its_end_is_refused(tmp_path: Path) -> None:
    """An attacker who controls the gateway can sign the remaining entries."""
    whole, file = head(log()), tmp_path / "log.jsonl"
    entries = log()[:4]
    write_export(file, entries, head(entries))
    with pytest.raises(IntegrityError, match="cut off"):
        verify_export(file, head(entries), whole)
    newer = replace(whole, at_s=whole.at_s + 1, signature="").signed(KEY)
    assert verify_export(file, head(entries), newer)[0] == 4  # an export that was made before


@pytest.mark.parametrize("text", ['=HYPERLINK("http://a.example")', "+1", "-1", "@a", "'=1", "'a"])
def test_a_csv_file_has_no_formulas(text: str, tmp_path: Path) -> None:
    entry = next_entry((0, FIRST), at_s=1.0, actor=text, action="a", subject=text, details=text)
    write_export(file := tmp_path / "log.csv", [entry], head([entry]))
    _, row = csv.reader(StringIO(file.read_text()))
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)
    assert verify_export(file, head([entry]))[0] == 1


def test_another_file_is_no_export(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    for content in (b"a,b\n1,2\n", b"{}\n", b"\xff\xfe", b'{"x": ' + b"[" * 60_000):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="holds no export"):
            verify_export(file, head(log()))


def test_typed_times() -> None:
    assert time_of("") == 0 and time_of("1970-01-02") == 86_400 and time_of("1970-01-01T02:00+01:00") == 3600
