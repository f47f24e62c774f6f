"""What was spent, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

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
