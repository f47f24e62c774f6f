"""What was spent, on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstline_edge.budgets.ledgers import Books, LedgerFile


@pytest.mark.parametrize("content", [b"", b"[]", b'{"ledgers": {"bytes/day": {"spent": "much"}}}', b"\xff"])
def test_a_file_that_makes_no_sense_is_no_failure(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spending.json").write_bytes(content)
    assert LedgerFile(tmp_path / "spending.json").read() == Books()
