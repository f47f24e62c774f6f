"""The registry's folder, also one that replicas share and that hangs."""

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstline_core.errors import RequestError, StoreUnavailableError
from firstline_gateway.registry import files
from firstline_gateway.registry.files import LocalBlobs

HUNG = "ab" + "0" * 62
CONTENT = b"a model"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """A stored file, here a pipe without a writer, that no thread can open before the end of the test."""
    path = tmp_path / HUNG[:2] / HUNG
    path.parent.mkdir()
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


async def content(blobs: LocalBlobs, sha256: str) -> bytes:
    return b"".join([part async for part in blobs.read(sha256, 0, len(CONTENT))])


async def parts(*contents: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for each in contents:
        yield each
    if error is not None:
        raise error


async def test_a_hung_folder_delays_no_other_work(hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE_S", 0.2)
    blobs = LocalBlobs(tmp_path)
    before = threading.active_count()
    reads = await asyncio.gather(*(content(blobs, HUNG) for _ in range(100)), return_exceptions=True)
    assert {type(each) for each in reads} == {StoreUnavailableError}
    assert "did not answer within 0.2 s" in str(reads[0])
    assert threading.active_count() <= before + files._CALLS
    async with asyncio.timeout(5):
        assert await asyncio.to_thread(lambda: "other work") == "other work"


async def test_a_folder_serves_again_after_it_hung(hung: Path, tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    waiting = [asyncio.create_task(content(blobs, HUNG)) for _ in range(files._CALLS)]
    put = asyncio.create_task(blobs.put(SHA256, parts(CONTENT)))
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    writer = os.open(hung, os.O_RDWR | os.O_NONBLOCK)
    await put
    assert await content(blobs, SHA256) == CONTENT
    os.close(writer)


async def test_an_upload_leaves_the_event_loop_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, threads = LocalBlobs(tmp_path), set()
    for name in ("open", "unlink", "replace"):
        original = getattr(Path, name)

        def noted(path: Path, *arguments: Any, original: Any = original, **options: Any) -> Any:
            threads.add(threading.current_thread())
            return original(path, *arguments, **options)

        monkeypatch.setattr(Path, name, noted)
    await blobs.put(SHA256, parts(CONTENT))
    with pytest.raises(RequestError):
        await blobs.put(HUNG, parts(CONTENT, error=RequestError("It is another file.")))
    assert threads and threading.current_thread() not in threads
    assert [blob.sha256 for blob in await blobs.all()] == [SHA256]
    assert list((tmp_path / "incoming").iterdir()) == []
