"""The registry on either database: what is renewed in time, what is warned of, how files are kept."""

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from support.broker import free_port
from support.databases import OpenStore
from support.logs import captured_lines
from support.streams import serving_streams
from support.waiting import until
from tuf.api.metadata import Snapshot, TargetFile, Targets, Timestamp

from bench.support.signed_repository import START, SignedRepository
from firstline_core import errors
from firstline_core.clock import SimulatedClock
from firstline_core.fleet.registry import expiry_warnings
from firstline_core.units import DAY_S
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.registry import records, signing
from firstline_gateway.registry.aliases import Aliases
from firstline_gateway.registry.catalogue import Catalogue, catalogue_of, check_listed, entry_of
from firstline_gateway.registry.files import PART_BYTES, Blobs, Files, LocalBlobs
from firstline_gateway.registry.records import RoleHead
from firstline_gateway.registry.registry import Registry, open_blobs
from firstline_gateway.registry.s3 import S3Blobs
from firstline_gateway.rollouts.bundle_use import reason_to_keep
from firstline_gateway.settings.settings import RegistrySection, StoreSection

BUCKET = "bundles"


class Room:
    """A registry whose clock the test moves."""

    def __init__(self, store: StoreSection, folder: Path) -> None:
        self.opened = OpenStore(store)
        self.clock = SimulatedClock(wall_start_s=START.timestamp())
        self.folder = folder
        settings = RegistrySection(blobs=str(folder / "blobs"))
        self.registry = Registry(
            self.opened.store,
            Files(open_blobs(settings.blobs), settings, clock=self.clock),
            AuthorityFolder(folder / "identity", self.clock),
            in_use=reason_to_keep,
            clock=self.clock,
        )
        self.repository = SignedRepository()

    async def begin(self) -> None:
        """Publishes a root that names this gateway's key."""
        offered = await self.registry.online_key(fresh=False)
        (signer,) = signing.signers(self.folder / "identity")
        assert signer.public_key.keyid == offered.keyid
        root = self.repository.root
        for role in (Snapshot.type, Timestamp.type):
            root.revoke_key(self.repository.signers[role][0].public_key.keyid, role)
            root.add_key(signer.public_key, role)
        self.repository.publish_root()
        targets = self.repository.files["1.targets.json"]
        await self.registry.publish([self.repository.anchor, targets], "application:ops")

    async def ends_s(self) -> float:
        """When the timestamp ends."""
        return (await self.registry.metadata("timestamp.json")).expires_s

    def close(self) -> None:
        self.opened.close()


@pytest.fixture
def room(store_settings: StoreSection, tmp_path: Path) -> Iterator[Room]:
    found = Room(store_settings, tmp_path)
    yield found
    found.close()


async def test_snapshot_and_timestamp_are_renewed_before_they_end(room: Room) -> None:
    await room.registry.maintain()  # nothing is published yet
    await room.begin()
    assert await room.ends_s() == room.clock.wall_s() + DAY_S
    for _ in range(3 * 24):
        await room.clock.advance(3600)
        await room.registry.maintain()
        assert await room.ends_s() > room.clock.wall_s() + DAY_S / 2 - 120
    with room.opened.database.reading() as connection:
        assert records.heads(connection)["targets"][0] == 1
        (count,) = connection.exec_driver_sql("SELECT count(*) FROM registry_metadata WHERE role = 'timestamp'").one()
    assert count == 1
    assert room.registry.latest_expiries["root"] == (START.timestamp() + 365 * DAY_S)


async def test_a_gateway_renews_metadata_that_expired_while_it_was_down(room: Room) -> None:
    await room.begin()
    await room.clock.advance(3 * DAY_S)
    await room.registry.maintain()
    assert await room.ends_s() == room.clock.wall_s() + DAY_S


async def test_expiring_metadata_is_warned_of_once_a_day(room: Room) -> None:
    await room.begin()
    await room.clock.advance(80 * DAY_S)
    with captured_lines() as lines:
        await room.registry.maintain()
        await room.registry.maintain()
    assert len([line for line in lines if "targets metadata ends in 10 days" in line.get("warning", "")]) == 1
    await room.clock.advance(2 * DAY_S)
    with captured_lines() as lines:
        await room.registry.maintain()
    assert any("ends in 8 days" in line.get("warning", "") for line in lines)
    status = await room.registry.status()
    assert len(status.warnings) == 1 and "targets" in status.warnings[0]


async def test_expiry_is_warned_of_after_the_clock_stepped_back(room: Room) -> None:
    await room.begin()
    await room.clock.advance(80 * DAY_S)
    wall_s = room.clock.wall_s()
    room.clock.set_wall_s(wall_s + 365 * DAY_S)
    await room.registry.maintain()
    room.clock.set_wall_s(wall_s)
    await room.clock.advance(2 * DAY_S)
    with captured_lines() as lines:
        await room.registry.maintain()
    assert any("ends in 8 days" in line.get("warning", "") for line in lines)


async def test_missing_online_key_is_logged_and_nothing_is_signed(room: Room) -> None:
    await room.begin()
    (file,) = (room.folder / "identity").glob("registry-*.key")
    content = file.read_bytes()
    file.unlink()
    await room.clock.advance(20 * 3600)
    with captured_lines() as lines, pytest.raises(errors.NotReadyError, match="none of the online keys"):
        await room.registry.maintain()
    assert any("timestamp metadata ends in 4 hours" in line.get("warning", "") for line in lines)
    file.write_bytes(content)
    await room.registry.maintain()
    assert await room.ends_s() == room.clock.wall_s() + DAY_S
    file.write_bytes(b"no key")
    with pytest.raises(errors.ConfigError, match=r"holds no private key .* keys rotate online"):
        await room.registry.online_key(fresh=False)


async def test_expired_metadata_is_not_published(room: Room) -> None:
    await room.registry.online_key(fresh=False)
    await room.clock.advance(400 * DAY_S)
    with pytest.raises(errors.MetadataExpiredError, match="root metadata ended"):
        await room.registry.publish([room.repository.anchor], "application:ops")
    with pytest.raises(errors.RequestError, match="needs root metadata"):
        await room.registry.publish([room.repository.files["1.targets.json"]], "application:ops")


async def test_the_newest_metadata_and_every_root_are_kept(room: Room) -> None:
    await room.begin()
    for _ in range(25):
        await room.clock.advance(DAY_S)
        await room.registry.maintain()
    with room.opened.database.reading() as connection:
        counted = dict(connection.exec_driver_sql("SELECT role, count(*) FROM registry_metadata GROUP BY role").all())
    assert counted == {"root": 1, "targets": 1, "snapshot": 20, "timestamp": 1}


async def test_aliases_are_kept_with_their_history(room: Room) -> None:
    await room.begin()
    aliases = Aliases(room.opened.store, room.registry.catalogue, clock=room.clock)
    with pytest.raises(errors.NotFoundError, match="no digits version 1"):
        await aliases.set("digits", "champion", 1, "application:ops")
    with pytest.raises(errors.NotFoundError, match="no alias champion"):
        await aliases.revert("digits", "champion", "application:ops")
    with pytest.raises(errors.NotFoundError):
        await aliases.history("digits", "champion")
    assert await aliases.all() == []


def test_a_day_is_warned_of_in_the_words_for_it() -> None:
    warnings = expiry_warnings({"root": 40 * DAY_S, "timestamp": -60.0, "authority": DAY_S, "targets": 600.0}, 0.0)
    assert set(warnings) == {"timestamp", "authority", "targets"}
    assert warnings["timestamp"].startswith("The timestamp metadata ended on 1969-12-31 23:59 UTC")
    assert "ends in 24 hours" in warnings["authority"] and "ca prepare" in warnings["authority"]
    assert "ends in 10 minutes" in warnings["targets"]


# Files, in a folder and in a store that speaks S3


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """moto's server, which speaks S3 over HTTP."""
    port = free_port()
    log = (tmp_path_factory.mktemp("s3") / "log").open("wb")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}"
    deadline_s = time.monotonic() + 60
    while True:
        try:
            httpx.put(f"{url}/{BUCKET}", trust_env=False)
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline_s and process.poll() is None
            time.sleep(0.1)
    yield url
    process.terminate()
    process.wait(timeout=30)
    log.close()


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture(params=["folder", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path, s3_keys: None) -> Blobs:
    if request.param == "folder":
        return open_blobs(str(tmp_path / "blobs"))
    url: str = request.getfixturevalue("s3_server")
    return open_blobs(f"s3://{BUCKET}/{tmp_path.name}", endpoint=url, region="us-east-1")


async def _parts(content: bytes, *, size_bytes: int = 700_000, cut: bool = False) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size_bytes):
        yield content[start : start + size_bytes]
    if cut:
        raise ConnectionResetError("the client left")


async def _read(blobs: Blobs, digest: str, start: int, end: int) -> bytes:
    return b"".join([part async for part in blobs.read(digest, start, end)])


@pytest.mark.parametrize("size_bytes", [0, 1, 3_000_000, 12_000_000])
async def test_a_file_is_stored_and_read_in_any_part(blobs: Blobs, size_bytes: int) -> None:
    content = os.urandom(size_bytes)
    digest = hashlib.sha256(content).hexdigest()
    assert await blobs.find(digest) is None
    await blobs.put(digest, _parts(content))
    found = await blobs.find(digest)
    assert found.size_bytes == size_bytes
    assert abs(found.stored_s - time.time()) < 60
    assert await _read(blobs, digest, 0, size_bytes) == content
    middle = size_bytes // 3, size_bytes // 2
    assert await _read(blobs, digest, *middle) == content[slice(*middle)]
    assert [one.sha256 for one in await blobs.all()] == [digest]
    await blobs.remove(digest)
    await blobs.remove(digest)
    assert await blobs.all() == []
    with pytest.raises(errors.NotFoundError) as absent:
        await _read(blobs, digest, 0, 1)
    assert BUCKET not in absent.value.public


async def test_wrong_oversized_or_truncated_uploads_are_not_stored(blobs: Blobs) -> None:
    content = os.urandom(12_000_000)  # more than S3's parts
    digest = hashlib.sha256(content).hexdigest()
    files = Files(blobs, RegistrySection(blob_limit_bytes=12_000_000), clock=SimulatedClock())
    small = Files(blobs, RegistrySection(blob_limit_bytes=11_000_000), clock=SimulatedClock())
    with pytest.raises(errors.RequestError, match="send the file again"):
        await files.put("0" * 64, _parts(content))
    with pytest.raises(errors.PayloadTooLargeError):
        await small.put(digest, _parts(content))
    with pytest.raises((ConnectionResetError, errors.StoreUnavailableError)):
        await files.put(digest, _parts(content, cut=True))
    assert await blobs.all() == []
    assert await files.put(digest, _parts(content))
    assert await _read(blobs, digest, 0, 10) == content[:10]


async def test_file_that_was_cut_short_is_replaced(blobs: Blobs) -> None:
    content = os.urandom(1000)
    digest = hashlib.sha256(content).hexdigest()
    files = Files(blobs, RegistrySection(limit_bytes=1500), clock=SimulatedClock())
    await blobs.put(digest, _parts(content[:400]))
    with pytest.raises(errors.RequestError, match="send the file again"):
        await files.put(digest, _parts(content[:500]), 500)
    assert await files.put(digest, _parts(content), 1000)
    assert await _read(blobs, digest, 0, 1000) == content
    assert not await files.put(digest, _parts(content), 1000)
    other = os.urandom(500)
    assert await files.put(hashlib.sha256(other).hexdigest(), _parts(other), 500)


async def test_concurrent_uploads_of_one_file_succeed(blobs: Blobs) -> None:
    content = os.urandom(2_000_000)
    digest = hashlib.sha256(content).hexdigest()
    await asyncio.gather(*(blobs.put(digest, _parts(content)) for _ in range(3)))
    assert [one.sha256 for one in await blobs.all()] == [digest]


@pytest.mark.usefixtures("s3_keys")
async def test_a_missing_bucket_is_no_missing_file(s3_server: str) -> None:
    blobs = S3Blobs("elsewhere", endpoint=s3_server, region="us-east-1")
    with pytest.raises(errors.StoreUnavailableError, match="NoSuchBucket"):
        await blobs.find("0" * 64)


@pytest.mark.usefixtures("s3_keys")
async def test_a_store_that_is_away_is_said() -> None:
    away = S3Blobs(BUCKET, endpoint=f"http://127.0.0.1:{free_port()}", region="us-east-1")
    with pytest.raises(errors.StoreUnavailableError, match="s3://bundles refuses") as caught:
        await away.find("0" * 64)
    assert "Debug" not in caught.value.message and "\n" not in caught.value.message
    assert caught.value.public == "The registry's store refuses; the gateway's log has the reason."


async def test_callers_do_not_see_where_files_are(tmp_path: Path) -> None:
    folder = LocalBlobs(tmp_path / "blobs")
    (tmp_path / "blobs" / "00").write_bytes(b"")  # where a folder has to be
    with pytest.raises(errors.StoreUnavailableError, match=str(tmp_path)) as caught:
        await folder.put("0" * 64, _parts(b"content"))
    assert caught.value.public.startswith("The registry's folder refuses: ")
    assert str(tmp_path) not in caught.value.public


@pytest.mark.parametrize(("sent_bytes", "problem"), [(1000, "sends more than"), (9, "sends less than")])
@pytest.mark.usefixtures("s3_keys")
async def test_a_part_of_another_length_is_refused(sent_bytes: int, problem: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        dated = b'Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nETag: "a"\r\nConnection: close\r\n'
        sized = b"Content-Range: bytes 0-9/10\r\nContent-Length: %d\r\n" % sent_bytes
        writer.write(b"HTTP/1.1 206 Partial Content\r\n" + dated + sized + b"\r\n" + bytes(sent_bytes))
        writer.close()

    async with serving_streams(answer) as port:
        blobs = S3Blobs(BUCKET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1")
        with pytest.raises(errors.StoreUnavailableError, match=problem):
            [part async for part in blobs.read("0" * 64, 0, 10)]


@pytest.mark.usefixtures("s3_keys")
async def test_no_request_lasts_as_long_as_a_slow_reader() -> None:
    """The store's client ends a request after 30 s, its body included."""
    content, open_requests = os.urandom(32_000_000), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_requests
        open_requests += 1
        head = await reader.readuntil(b"\r\n\r\n")
        first, last = map(int, re.findall(rb"bytes=(\d+)-(\d+)", head)[0])
        dated = b'Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nETag: "a"\r\nConnection: close\r\n'
        part = content[first : last + 1]
        sized = b"Content-Range: bytes %d-%d/%d\r\nContent-Length: %d\r\n" % (first, last, len(content), len(part))
        writer.write(b"HTTP/1.1 206 Partial Content\r\n" + dated + sized + b"\r\n" + part)
        await writer.drain()
        open_requests -= 1
        writer.close()

    async with serving_streams(answer) as port:
        blobs, found = S3Blobs(BUCKET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1"), b""
        async for part in blobs.read("0" * 64, 0, len(content)):
            await until(lambda: not open_requests)  # the store has sent all that was requested
            assert len(part) <= PART_BYTES  # memory of each device that fetches a file
            found += part
        assert found == content


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ("403 Forbidden", "RequestTimeTooSkewed", "The clocks differ"),
        ("404 Not Found", "NoSuchBucket", "There is no bucket"),
        ("507 Insufficient Storage", "XMinioStorageFull", "The disk is full"),
    ],
)
@pytest.mark.usefixtures("s3_keys")
async def test_the_stores_own_reason_is_said(status: str, code: str, words: str) -> None:
    reason = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>"
    page = f'<?xml version="1.0"?>\n{reason}{"x" * 9999}'.encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(page)}\r\n\r\n"
        writer.write(head.encode() + page)
        writer.close()

    async with serving_streams(answer) as port:
        blobs = S3Blobs(BUCKET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1")
        with pytest.raises(errors.StoreUnavailableError, match=f"{code}.*{words}") as caught:
            await blobs.put("0" * 64, _parts(b"content"))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 1100


@pytest.mark.parametrize(
    ("files_of_a_page", "problem"),
    [(10, "lists more than 100 files"), (0, "did not end within 0.5 s")],
    ids=["files", "empty"],
)
@pytest.mark.usefixtures("s3_keys")
async def test_endless_list_is_refused(files_of_a_page: int, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_gateway.registry.s3._LISTED_LIMIT", 100)
    monkeypatch.setattr("firstline_gateway.registry.s3._LIST_S", 0.5)
    dated = "<LastModified>2025-01-01T00:00:00.000Z</LastModified>"
    file = f'<Contents><Key>blobs/{"0" * 64}</Key>{dated}<ETag>"a"</ETag><Size>1</Size></Contents>'
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken>"
    page = f"<ListBucketResult><Name>bundles</Name>{more}{file * files_of_a_page}</ListBucketResult>".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
        writer.close()

    async with serving_streams(answer) as port:
        blobs = S3Blobs(BUCKET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1")
        with pytest.raises(errors.StoreUnavailableError, match=problem):
            async with asyncio.timeout(10):
                await blobs.all()


async def test_incomplete_uploads_are_deleted(tmp_path: Path) -> None:
    folder = LocalBlobs(tmp_path / "blobs")
    old, new = (tmp_path / "blobs" / "incoming" / name for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 3 * DAY_S,) * 2)
    assert await folder.all() == []
    assert (old.exists(), new.exists()) == (False, True)
    os.utime(new, (time.time() - 3 * DAY_S,) * 2)  # without a newer one
    assert await folder.all() == [] and not new.exists()


def test_where_files_are_must_be_said_well(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.ConfigError, match="without a bucket"):
        open_blobs("s3:///prefix")
    with pytest.raises(errors.ConfigError, match="cannot be written"):
        open_blobs(str(tmp_path / "file" / "below"))


def test_devices_verify_what_the_gateway_signs(tmp_path: Path) -> None:
    repository = SignedRepository()
    targets = repository.files["1.targets.json"]
    snapshot, timestamp = signing.signed_online(targets, repository.signers["snapshot"][0], {}, START.timestamp())
    assert snapshot.version == timestamp.version == int(START.timestamp())
    later = signing.signed_online(
        targets, repository.signers["snapshot"][0], {"snapshot": RoleHead(1 << 40, 0.0)}, START.timestamp()
    )
    assert later[0].version == (1 << 40) + 1
    with pytest.raises((errors.IntegrityError, errors.RequestError)):
        signing.targets_of(b"{}")


async def test_the_total_size_of_files_is_limited(tmp_path: Path) -> None:
    settings, clock = RegistrySection(blobs=str(tmp_path), limit_bytes=1000), SimulatedClock()
    files, other = (Files(open_blobs(settings.blobs), settings, clock=clock) for _ in range(2))
    contents = [bytes([number]) * 400 for number in range(4)]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    assert await files.put(digests[0], _parts(contents[0]))
    # Two that come at the same moment and would not fit together: one has the room.
    both = await asyncio.gather(
        *(
            files.put(digest, _parts(content, size_bytes=10))
            for digest, content in zip(digests[1:3], contents[1:3], strict=True)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(each, errors.NoRoomError) for each in both) >= 1
    assert sum(blob.size_bytes for blob in await files.all()) <= 1000
    with pytest.raises(errors.NoRoomError, match=r"of the 1000 bytes that registry\.limit_bytes allows"):
        for digest, content in zip(digests, contents, strict=True):
            await files.put(digest, _parts(content))
    # Another replica makes room, and that is known in a minute.
    assert await other.sweep((), -clock.wall_s()) >= 1
    await clock.advance(60)
    assert await files.put(digests[3], _parts(contents[3]))


def test_each_bundle_is_read_from_its_own_files() -> None:
    files = {
        f"m/{version}/{name}": TargetFile(1, {"sha256": f"{version:064}"}, f"m/{version}/{name}", {"custom": custom})
        for version in range(1, 4)
        for name, custom in (
            ("manifest.json", {"bundle": "m", "version": version, "variants": []}),
            ("a.onnx", {"models": ["full"]}),
        )
    }
    catalogue = catalogue_of(Targets(7, expires=START, targets=files))
    assert catalogue.version == 7 and list(catalogue.bundles) == [("m", 1), ("m", 2), ("m", 3)]
    assert set(catalogue.bundles[("m", 2)]) == {"m/2/manifest.json", "m/2/a.onnx"}
    check_listed(catalogue)
    assert entry_of(catalogue, ("m", 2), ()).manifest_sha256 == f"{2:064}"
    with pytest.raises(errors.NotFoundError, match="has no version 4 of m"):
        entry_of(catalogue, ("m", 4), ())
    with pytest.raises(errors.NotFoundError, match="has no model 'n'"):
        entry_of(catalogue, ("n", 1), ())
    with pytest.raises(errors.RequestError, match="is of no bundle"):
        catalogue_of(Targets(7, expires=START, targets={"stray": TargetFile(1, {"sha256": "0" * 64}, "stray")}))


async def test_an_alias_is_not_set_to_a_version_that_was_removed_meanwhile(room: Room) -> None:
    await room.begin()
    seen = await room.registry.catalogue.current()
    old = Catalogue(seen.version - 1, {}, {("m", 1): {}})

    async def before() -> Catalogue:
        return old

    aliases = Aliases(room.opened.store, SimpleNamespace(current=before), clock=room.clock)
    with pytest.raises(errors.ConflictError, match="published since"):
        await aliases.set("m", "champion", 1, "application:ops")
