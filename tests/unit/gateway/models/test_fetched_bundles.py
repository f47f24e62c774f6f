"""Bundles that come from the registry: whole, checked, and without a pause of the event loop."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from firstline_core.errors import IntegrityError
from firstline_core.fleet.target import FULL, FileUse, ListedBundle, Release
from firstline_core.storage.artefact import SignedFile
from firstline_core.types import ModelKey
from firstline_gateway.models.fetched_bundles import FetchedBundles

KEY = ModelKey("digits", 1)
CONTENTS = {"digits/1/manifest.json": b"{}", "digits/1/full.onnx": b"weights" * 1000}
SIGNED = {path: SignedFile(path, len(content), sha256(content).hexdigest(), {}) for path, content in CONTENTS.items()}
LISTED = ListedBundle(
    Release(*KEY, ()), SIGNED["digits/1/manifest.json"], {"full.onnx": (SIGNED["digits/1/full.onnx"], FileUse((FULL,)))}
)


async def genuine(digest: str, start: int, end: int) -> AsyncIterator[bytes]:
    content = next(content for content in CONTENTS.values() if sha256(content).hexdigest() == digest)
    for at in range(start, end, 1024):
        yield content[at : min(at + 1024, end)]


async def test_a_fetched_bundle_is_whole(tmp_path: Path) -> None:
    bundles = FetchedBundles(tmp_path / "full", genuine)
    assert not bundles.has(KEY)
    path = await bundles.fetch(LISTED)
    assert path == bundles.path(KEY)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == {
        Path(name).name: content for name, content in CONTENTS.items()
    }
    bundles.remove(KEY)
    assert not bundles.has(KEY)


async def test_other_bytes_than_were_signed_are_not_installed(tmp_path: Path) -> None:
    async def forged(digest: str, start: int, end: int) -> AsyncIterator[bytes]:
        async for part in genuine(digest, start, end):
            yield part.replace(b"w", b"W")

    bundles = FetchedBundles(tmp_path / "full", forged)
    with pytest.raises(IntegrityError, match=r"other bytes of digits/1/full\.onnx"):
        await bundles.fetch(LISTED)
    assert not bundles.has(KEY)


async def test_a_slow_disk_does_not_stop_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, waits, found, sync = threading.Event(), threading.Event(), [], os.fsync

    def slow(descriptor: int) -> None:
        waits.set()
        found.append(runs.wait(5))
        sync(descriptor)

    bundles = FetchedBundles(tmp_path / "full", genuine)
    monkeypatch.setattr(os, "fsync", slow)
    fetching = asyncio.create_task(bundles.fetch(LISTED))
    assert await asyncio.to_thread(waits.wait, 5)
    runs.set()
    await fetching
    assert all(found)
