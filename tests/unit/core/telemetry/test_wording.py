"""Numbers for people."""

from __future__ import annotations

import pytest

from firstline_core.telemetry.wording import rounded


@pytest.mark.parametrize(
    ("value", "text"), [(0.53349, "0.533"), (81.49, "81.5"), (999.4, "999"), (999.6, "1,000"), (15_700.2, "15,700")]
)
def test_large_numbers_have_no_exponent(value: float, text: str) -> None:
    assert rounded(value) == text
