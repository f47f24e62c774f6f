"""What the tests of the gateway's API share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.databases import OpenStore, sqlite_store

from firstline_core.clock import SYSTEM_CLOCK
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.settings.load import load


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[IdentityService]:
    """Trusts one proxy, 192.0.2.7, which passes on certificates in X-Client-Cert."""
    overrides = {
        "auth.proxy_certificate_header": "X-Client-Cert",
        "auth.trusted_proxies": ["192.0.2.7"],
        "identity.directory": str(tmp_path / "identity"),
    }
    with OpenStore(sqlite_store(tmp_path)) as opened:
        found = IdentityService(load(None, overrides=overrides), opened.store, clock=SYSTEM_CLOCK)
        yield found
        await found.close()
        assert found.readers.close(5)
