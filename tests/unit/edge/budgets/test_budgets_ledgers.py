"""What was spent, on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from firstline_core.routing.budget import Ledger
from firstline_edge.budgets.ledgers import Books, LedgerFile

# By a version that remembered demand otherwise, or by hand.
_STRANGE = [
    b'{"ledgers": {"bytes/day": {%s}}}' % odd
    for odd in (b'"prices": [1]', b'"spent": -5', b'"demands": []', b'"demands": [{"today": [1]}, {}, {}]')
]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"ledgers": {"bytes/day": {"spent": "much"}}}', b"\xff", *_STRANGE])
def test_a_file_that_makes_no_sense_is_no_failure(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spending.json").write_bytes(content)
    assert LedgerFile(tmp_path / "spending.json").read() == Books()


def test_damage_is_told_and_set_aside_and_the_books_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    file = LedgerFile(path)
    file.write(msgspec.json.encode(Books({"bytes/day": Ledger(period=20_500, spent=12.5)})))
    whole = path.read_bytes()
    assert LedgerFile(path).read().ledgers["bytes/day"].spent == 12.5
    found = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        file = LedgerFile(path)
        books = file.read()
        if file.loss:
            assert books == Books()
            assert path.with_name("spending.json.damaged").read_bytes() == damaged
            if not bit % 8:  # an fsync
                file.write(b"{}")
            assert file.problem == file.loss
            found += 1
        else:
            assert books.ledgers["bytes/day"].spent == 12.5
    assert found > 8 * (len(whole) - 2)
    path.write_bytes(whole)
    assert LedgerFile(path).read().ledgers["bytes/day"].spent == 12.5
