"""Whether a client has the current version."""

from __future__ import annotations

from firstline_gateway.api.messages import has_already

ETAG = '"e"'


def test_a_cached_version_is_recognised_by_its_etag() -> None:
    assert has_already('"x", W/"e"', ETAG)
    assert has_already("*", ETAG)
    assert not has_already('"x"', ETAG)
    assert not has_already(None, ETAG)
