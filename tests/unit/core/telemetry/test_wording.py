"""Numbers and times for people."""

import pytest

from firstline_core.telemetry.wording import duration_text, rounded, time_text


@pytest.mark.parametrize(
    ("value", "text"), [(0.53349, "0.533"), (81.49, "81.5"), (999.4, "999"), (999.6, "1,000"), (15_700.2, "15,700")]
)
def test_large_numbers_have_no_exponent(value: float, text: str) -> None:
    assert rounded(value) == text


@pytest.mark.parametrize(
    ("wall_s", "text"), [(1e12, "9999-12-31 23:59"), (1e18, "9999-12-31 23:59"), (-1e18, "1900-01-01 00:00")]
)
def test_a_time_beyond_all_years_is_shown(wall_s: float, text: str) -> None:
    """A brake may end at any time up to 1e12 s, and the clock of a device that measures may say 1e18 s."""
    assert time_text(wall_s) == f"{text} UTC"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.0, "1 second"), (119.0, "119 seconds"), (120.0, "2 minutes"), (172_800.0, "2 days")]
)
def test_a_duration_has_the_number_of_its_noun(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
