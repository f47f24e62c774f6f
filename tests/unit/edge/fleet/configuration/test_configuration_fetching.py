"""A configuration over the link: the bytes that were signed, or none."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.fleet.configuration import LIMIT_BYTES, configuration_path
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.configuration.configurator import fetch, find_file

CONTENT = 'name = "quiet"\nversion = 1\n# für alle\n'.encode()


class Site:
    """One that lists what is signed, and sends what it has, a few bytes at a time.

    Args:
        content: that is signed.
        sent: instead of it.
    """

    def __init__(self, content: bytes = CONTENT, sent: bytes | None = None) -> None:
        sha256 = hashlib.sha256(content).hexdigest()
        self.file = SignedFile(configuration_path("quiet", 1), len(content), sha256, {})
        self.wanted = DesiredConfiguration("quiet", 1, sha256)
        self.sent = content if sent is None else sent
        self.taken_bytes = 0

    async def files(self) -> dict[str, SignedFile]:
        return {self.file.path: self.file}

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        assert (sha256, offset, size_bytes) == (self.file.sha256, 0, self.file.size_bytes)
        for at in range(0, len(self.sent), 5):
            self.taken_bytes += len(self.sent[at : at + 5])
            yield self.sent[at : at + 5]


async def test_what_is_signed_comes_as_it_is() -> None:
    site = Site()
    file = await find_file(site, site.wanted)
    held = await fetch(site, file, site.wanted)
    assert (held.name, held.version, held.text.encode()) == ("quiet", 1, CONTENT)
    assert held.sha256 == site.wanted.sha256


async def test_what_is_signed_as_something_else_is_not_fetched() -> None:
    site = Site()
    with pytest.raises(IntegrityError, match=f"signed as {site.file.sha256[:12]} .* bbbbbbbbbbbb is desired"):
        await find_file(site, replace(site.wanted, sha256="b" * 64))
    assert site.taken_bytes == 0


async def test_what_is_too_large_to_be_a_configuration_is_not_fetched() -> None:
    site = Site(b"#" * LIMIT_BYTES)
    assert await find_file(site, site.wanted) == site.file
    site = Site(b"#" * (LIMIT_BYTES + 1))
    with pytest.raises(IntegrityError, match=f"{LIMIT_BYTES + 1} bytes"):
        await find_file(site, site.wanted)


@pytest.mark.parametrize("sent", [b"", CONTENT[:-1], CONTENT.replace(b"1", b"2"), CONTENT + b"#"])
async def test_other_bytes_are_refused(sent: bytes) -> None:
    site = Site(sent=sent)
    with pytest.raises(IntegrityError, match="other bytes than were signed"):
        await fetch(site, site.file, site.wanted)


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    site = Site(sent=CONTENT * 1000)
    with pytest.raises(IntegrityError):
        await fetch(site, site.file, site.wanted)
    assert site.taken_bytes <= len(CONTENT) + 5


async def test_what_is_no_text_is_no_configuration() -> None:
    site = Site(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no text"):
        await fetch(site, site.file, site.wanted)
