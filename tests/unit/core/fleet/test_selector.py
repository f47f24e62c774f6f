"""Selectors of devices by tags."""

import pytest

from firstline_core.errors import RequestError
from firstline_core.fleet.selector import parse_selector

TAGS = {"site": "berlin", "outdoor": "yes", "camera": "v2"}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", True),
        ("site=berlin", True),
        ("site==berlin", True),
        (" site = berlin , outdoor ", True),
        ("site=paris", False),
        ("site!=paris", True),
        ("site!=berlin", False),
        ("floor!=2", True),
        ("floor=2", False),
        ("outdoor", True),
        ("!outdoor", False),
        ("!floor", True),
        ("site=berlin,!outdoor", False),
    ],
)
def test_a_selector_means_what_it_says(text: str, meant: bool) -> None:
    assert parse_selector(text).matches(TAGS) is meant


@pytest.mark.parametrize("text", ["site=", "=berlin", ",", "a b", "site=ber lin", "!", "site=a,,b", "x" * 2000, "ä=1"])
def test_what_is_no_selector_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(RequestError, match="selector"):
        parse_selector(text)
