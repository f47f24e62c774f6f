"""How many may have come in and asked nothing yet."""

from __future__ import annotations

import resource

import pytest

from firstline_gateway.api.connection.door import NEWCOMERS_LIMIT, newcomers_limit


@pytest.mark.parametrize(
    ("descriptors", "limit"),
    [(resource.RLIM_INFINITY, NEWCOMERS_LIMIT), (1 << 20, NEWCOMERS_LIMIT), (1024, 512), (1, 1), (0, 1)],
)
def test_newcomers_have_half_of_the_descriptors_at_most(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, limit: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, resource.RLIM_INFINITY))
    assert newcomers_limit() == limit
