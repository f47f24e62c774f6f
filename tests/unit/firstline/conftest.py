"""Fixtures for the tests of the workstation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firstline.workbench import row_checks


@pytest.fixture(scope="module", autouse=True)
def _few_made_up_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each created or certified bundle is checked on an eighth of the rows; the checks' own tests run all of them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_row_checks.py":
            patch.setattr(row_checks, "_ROWS", 32)
        yield
