from __future__ import annotations

import msgspec
import pytest

from firstline_core.types import Name


@pytest.mark.parametrize("name", ["a", "press-7", "0", "A.b_c-D", "x" * 64])
def test_names(name: str) -> None:
    assert msgspec.convert(name, Name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a b", "a\n", "a\0", "é", "x" * 65, "+", "#"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)
