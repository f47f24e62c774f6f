"""The registry of a real gateway over HTTP: keys, pushes, pulls, ranges, and what it refuses."""

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from securesystemslib.signer import Key
from sqlalchemy import delete, insert, select
from support.commands import firstline
from support.databases import sqlite_store
from support.digits import digits_bundle
from support.gateway import DIGITS
from support.keys import bearer, revoke_key
from support.registry_site import RegistrySite, registry_site
from tuf.api.metadata import Root, Targets

from firstline.fleet.client import open_fleet
from firstline.fleet.registry import LocalFile, Registry
from firstline.release import publishing, roles
from firstline.release.keyring import Keyring, short
from firstline.release.publishing import PushedBundle, push_bundle, remove_bundle
from firstline.release.pulling import PulledBundle, pull_bundle
from firstline_core import errors
from firstline_core.bundle.store import open_bundle
from firstline_core.bundle.trust import Trust
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.fleet.registry import REGISTRY_PATH
from firstline_core.fleet.target import ExtraNeeds, files_for, find_bundle, listed_bundles
from firstline_gateway import audit_log
from firstline_gateway.registry.records import SIGNED
from firstline_gateway.registry.signing import ONLINE_LIFE

BLOBS = REGISTRY_PATH + "/blobs/"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a registry with keys, and with the digits as version 1."""
    folder = tmp_path_factory.mktemp("published") / "site"

    async def publish() -> None:
        async with registry_site(folder) as site:
            await site.begin()
            await site.push(open_bundle(DIGITS))

    asyncio.run(publish())
    for name in ("ops", "press-7"):  # each copy creates keys of its own
        revoke_key(sqlite_store(folder), name)
    return folder


@pytest_asyncio.fixture
async def begun(published: Path, tmp_path: Path) -> AsyncIterator[RegistrySite]:
    """Serves a copy of it."""
    shutil.copytree(published, tmp_path / "site")
    async with registry_site(tmp_path / "site") as site:
        yield site


def ignore(*_: int) -> None:
    """Ignores progress."""


def trust_of(site: RegistrySite, registry: Registry, name: str = "device") -> Trust:
    anchor = site.keyring.anchor.read_bytes()
    return Trust(site.folder / name, registry.metadata, anchor=anchor, now_s=SYSTEM_CLOCK.wall_s)


async def pulled(site: RegistrySite, folder: Path) -> PulledBundle:
    """Pulls the digits, version 1, into a folder."""

    def pull(registry: Registry) -> PulledBundle:
        return pull_bundle(trust_of(site, registry), registry, "digits", 1, folder, report=ignore)

    return await site.with_registry(pull)


async def test_bundle_is_pushed_listed_and_pulled_unchanged(begun: RegistrySite, tmp_path: Path) -> None:
    files = await begun.with_registry(lambda registry: trust_of(begun, registry).refresh())
    found = find_bundle(files, "digits", 1)
    assert [file.path for file in files_for(found, "edge-onnx")] == [
        "digits/1/manifest.json",
        "digits/1/edge-onnx.onnx",
        "digits/1/golden.json",
    ]
    bundle = await pulled(begun, tmp_path / "pulled")
    assert {path.name: path.read_bytes() for path in bundle.path.iterdir()} == {
        path.name: path.read_bytes() for path in DIGITS.iterdir()
    }
    with pytest.raises(errors.ConfigError, match="exists already"):
        await pulled(begun, tmp_path / "pulled")
    keys = list(begun.keyring.folder.glob("*.key"))
    assert len(keys) == 4 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys)
    with begun.gateway.store.database.reading() as connection:
        actions = [(entry.actor, entry.action) for entry in audit_log.page(connection, audit_log.EntryFilter(0), 10)]
    assert actions == [("application:ops", "registry.publish")] * 2


async def test_a_pull_deletes_no_file_of_another_origin(begun: RegistrySite, tmp_path: Path) -> None:
    other, part = tmp_path / "pulled.part", tmp_path / "pulled.digits@1.part"
    for folder in (other, part):
        folder.mkdir()
        (folder / "notes.txt").touch()
    with pytest.raises(errors.ConfigError, match=r"digits@1\.part/notes\.txt is not a file of this bundle; move it"):
        await pulled(begun, tmp_path / "pulled")
    (part / "notes.txt").rename(tmp_path / "notes.txt")
    bundle = await pulled(begun, tmp_path / "pulled")
    assert {path.name for path in bundle.path.iterdir()} == {path.name for path in DIGITS.iterdir()}
    assert (other / "notes.txt").exists()


async def test_existing_files_are_not_uploaded_again(begun: RegistrySite, tmp_path: Path) -> None:
    again = await begun.push(open_bundle(DIGITS))
    assert (again.sent_bytes, again.is_new) == (0, False)
    two = digits_bundle(tmp_path / "two", 2)
    second = await begun.push(two, {"edge-onnx": ExtraNeeds(("aarch64",), 64)})
    assert (second.sent_files, second.is_new) == (1, True)  # the manifest alone is new
    entry = await begun.with_registry(lambda registry: registry.bundle("digits", 2))
    assert entry.variants[0].needs.architectures == ("aarch64",)
    listed_now = await begun.with_registry(lambda registry: [(one.name, one.version) for one in registry.bundles()])
    assert listed_now == [("digits", 1), ("digits", 2)]


async def test_version_has_one_content(begun: RegistrySite, tmp_path: Path) -> None:
    other = digits_bundle(tmp_path / "other", 1)
    (other.path / "manifest.json").write_bytes((other.path / "manifest.json").read_bytes() + b"\n")
    with pytest.raises(errors.ConflictError, match="give the new content a higher version"):
        await begun.push(other)


async def test_concurrent_pushes_all_succeed(begun: RegistrySite, tmp_path: Path) -> None:
    bundles = [digits_bundle(tmp_path / str(version), version) for version in (2, 3, 4)]

    def pushing(version: int, bundle: Path) -> PushedBundle:
        keyring = Keyring(begun.keyring.folder)
        keyring.trust = tmp_path / f"trust-{version}"
        with open_fleet(begun.url, begun.operator) as fleet:
            return push_bundle(keyring, fleet.registry, open_bundle(bundle), {}, begun.now_s())

    pushes = await asyncio.gather(*(asyncio.to_thread(pushing, one.manifest.version, one.path) for one in bundles))
    assert all(one.is_new for one in pushes)
    found = await begun.with_registry(lambda registry: [one.version for one in registry.bundles("digits")])
    assert found == [1, 2, 3, 4]


async def test_push_repairs_a_file_that_the_disk_cut_short(begun: RegistrySite) -> None:
    digest = hashlib.sha256((DIGITS / "full.onnx").read_bytes()).hexdigest()
    stored = begun.folder / "blobs" / digest[:2] / digest
    os.truncate(stored, 1000)
    assert (await begun.push(open_bundle(DIGITS))).sent_files == 1
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == digest
    assert (await begun.push(open_bundle(DIGITS))).sent_files == 0


async def test_a_changed_file_is_named_and_replaced_once_deleted(begun: RegistrySite, tmp_path: Path) -> None:
    content = (DIGITS / "full.onnx").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    stored = begun.folder / "blobs" / digest[:2] / digest
    stored.write_bytes(bytes(len(content)))
    advice = f"delete the file {digest} of the registry and push the bundle again"
    with pytest.raises(errors.IntegrityError, match=advice):
        await pulled(begun, tmp_path / "pulled")
    stored.unlink()
    assert (await begun.push(open_bundle(DIGITS))).sent_files == 1
    assert (await pulled(begun, tmp_path / "pulled")).fetched_bytes >= len(content)


async def test_interrupted_download_resumes(begun: RegistrySite) -> None:
    content = (DIGITS / "full.onnx").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    path, etag = BLOBS + digest, f'"{digest}"'
    get = begun.client.get

    whole = await get(path)
    assert (whole.status_code, whole.content, whole.headers["etag"]) == (200, content, etag)
    assert "immutable" in whole.headers["cache-control"]
    part = await get(path, headers={"Range": "bytes=100-199", "If-Range": etag})
    assert (part.status_code, part.content) == (206, content[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(content)}"
    tail = await get(path, headers={"Range": "bytes=-5"})
    assert (tail.status_code, tail.content) == (206, content[-5:])
    changed = await get(path, headers={"Range": "bytes=100-", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, content)
    beyond = await get(path, headers={"Range": f"bytes={len(content)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(content)}")
    assert (await get(path, headers={"If-None-Match": etag})).status_code == 304
    head = await begun.client.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(content)))
    device = await get(path, headers=bearer(begun.device))
    assert device.content == content


async def test_numbered_metadata_can_be_cached(begun: RegistrySite) -> None:
    prefix = REGISTRY_PATH + "/metadata/"
    timestamp = await begun.client.get(prefix + "timestamp.json", headers=bearer(begun.device))
    assert "no-cache" in timestamp.headers["cache-control"]
    root = await begun.client.get(prefix + "1.root.json")
    assert "immutable" in root.headers["cache-control"]
    assert root.content == begun.keyring.anchor.read_bytes()
    again = await begun.client.get(prefix + "1.root.json", headers={"If-None-Match": root.headers["etag"]})
    assert again.status_code == 304
    for name in (
        "2.root.json",
        "0.root.json",
        ".root.json",
        "x.json",
        "root.json.json",
        "..%2f1.root.json",
        "1.key.json",
        "9" * 30,
    ):
        reply = await begun.client.get(prefix + name)
        assert reply.status_code == 404, name


INVALID = [
    ("PUT", BLOBS + "0" * 64, b"other", 400, "invalid_request"),
    ("PUT", BLOBS + "xyz", b"other", 400, "invalid_request"),
    ("GET", BLOBS + "0" * 64, b"", 404, "not_found"),
    ("GET", BLOBS + "A" * 64, b"", 400, "invalid_request"),
    ("POST", REGISTRY_PATH + "/metadata", b"{}", 400, "invalid_request"),
    ("POST", REGISTRY_PATH + "/metadata", b'{"metadata": [{}]}', 400, "invalid_request"),
    ("POST", REGISTRY_PATH + "/metadata", b"\xff", 400, "invalid_request"),
    ("GET", REGISTRY_PATH + "/bundles?after=digits", b"", 400, "invalid_request"),
    ("GET", REGISTRY_PATH + "/bundles?limit=0", b"", 400, "invalid_request"),
    ("GET", REGISTRY_PATH + "/bundles/digits/versions/7", b"", 404, "not_found"),
    ("GET", REGISTRY_PATH + "/bundles/digits/versions/x", b"", 400, "invalid_request"),
    ("PUT", REGISTRY_PATH + "/aliases/digits/champion", b'{"version": 9}', 404, "not_found"),
    ("PUT", REGISTRY_PATH + "/aliases/digits/champion", b'{"version": 0}', 400, "invalid_request"),
    ("DELETE", REGISTRY_PATH + "/aliases/digits/champion", b"", 404, "not_found"),
    ("GET", "/fleet/v1/nothing", b"", 404, "invalid_request"),
]


async def test_invalid_requests_are_refused(begun: RegistrySite) -> None:
    for method, path, content, status, code in INVALID:
        reply = await begun.client.request(method, path, content=content)
        assert reply.headers["content-type"] == "application/problem+json"
        body = reply.json()
        assert (reply.status_code, body["status"], body["code"]) == (status, status, code), (method, path, reply.text)
        assert body["type"] == "about:blank" and body["title"] and body["detail"]


async def test_refused_upload_leaves_nothing(tmp_path: Path) -> None:
    async with registry_site(tmp_path / "site", **{"registry.blob_limit_bytes": 1000}) as site:
        content = os.urandom(900)
        for sent, digest, kind in (
            (content, "0" * 64, errors.RequestError),
            (content * 2, hashlib.sha256(content * 2).hexdigest(), errors.PayloadTooLargeError),
        ):
            path = tmp_path / "file"
            path.write_bytes(sent)
            with pytest.raises(kind):
                await site.with_registry(partial(Registry.send, file=LocalFile(path, digest, len(sent)), report=ignore))
        assert await site.registry.files.all() == []
        assert not list((site.folder / "blobs" / "incoming").iterdir())


async def test_upload_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with registry_site(tmp_path / "site", **{"registry.limit_bytes": 1000}) as site:
        for size_bytes, status in ((900, 201), (101, 507)):
            content = os.urandom(size_bytes)
            sent = await site.client.put(
                f"/fleet/v1/registry/blobs/{hashlib.sha256(content).hexdigest()}", content=content
            )
            assert sent.status_code == status
        assert sent.json()["code"] == "no_room" and "registry.limit_bytes" in sent.json()["detail"]
        shown = (await site.client.get("/fleet/v1/registry")).json()
        assert (shown["blobs"], shown["blobs_bytes"], shown["limit_bytes"]) == (1, 900, 1000)
        listed = await firstline(site.url, site.operator, "model", "list")
        assert "keeps 1 file, 900 bytes of 1.0 KB" in listed.output, listed.output


async def test_gateway_without_a_registry_reports_it(tmp_path: Path) -> None:
    async with registry_site(tmp_path / "site", **{"registry.blobs": ""}) as site:
        reply = await site.client.get(REGISTRY_PATH)
        assert (reply.status_code, "registry.blobs" in reply.json()["detail"]) == (404, True)


async def test_registry_accepts_only_authorized_metadata(begun: RegistrySite, tmp_path: Path) -> None:
    keyring = begun.keyring
    root, targets = keyring.root(), keyring.targets()
    stranger = Keyring(tmp_path / "stranger")
    online = await begun.with_registry(lambda registry: registry.online_key())
    stranger.init(online, begun.now_s())

    async def refused(kind: type[Exception], words: str, *contents: bytes) -> None:
        with pytest.raises(kind, match=words):
            await begun.with_registry(lambda registry: registry.publish(contents))

    await refused(errors.ConflictError, "version 1 was sent, and 2 comes next", stranger.anchor.read_bytes())
    strange = roles.next_root(stranger.root(), begun.now_s())
    roles.sign(strange, stranger.signers(strange.signed.roles[Root.type].keyids))
    await refused(errors.SignatureError, "the root before it", strange.to_bytes())
    newer = roles.new_targets(dict(targets.signed.targets), targets.signed.version + 1, begun.now_s())
    await refused(errors.SignatureError, "not signed by a key", newer.to_bytes())
    roles.sign(newer, stranger.targets_signers(stranger.root().signed))
    await refused(errors.SignatureError, "not signed by a key", newer.to_bytes())
    await refused(errors.ConflictError, "published since", targets.to_bytes())

    def signed(version: int, **changes: object) -> bytes:
        metadata = roles.new_targets(dict(targets.signed.targets), version, begun.now_s())
        for path, found in list(metadata.signed.targets.items()):
            if path.endswith("full.onnx"):
                copied = type(found).from_dict(found.to_dict(), path)
                for name, value in changes.items():
                    setattr(copied, name, value)
                metadata.signed.targets[path] = copied
        roles.sign(metadata, keyring.targets_signers(root.signed))
        return metadata.to_bytes()

    following = targets.signed.version + 1
    await refused(errors.RequestError, "which the registry has not", signed(following, hashes={"sha256": "1" * 64}))
    await refused(errors.RequestError, "without a sha256", signed(following, hashes={"sha512": "1" * 128}))
    await refused(errors.RequestError, "are not valid", signed(following, unrecognized_fields={}))
    whole = signed(following)
    await refused(errors.RequestError, "Only root metadata", whole, whole)
    assert (await begun.with_registry(lambda registry: registry.publish([whole])))["targets"] == following


async def test_duplicate_key_is_neither_signed_nor_published(begun: RegistrySite) -> None:
    keyring = begun.keyring
    root = roles.next_root(keyring.root(), begun.now_s())
    first = root.signed.roles[Root.type].keyids[0]
    root.signed.add_key(Key.from_dict("cd" * 32, root.signed.keys[first].to_dict()), Root.type)
    with pytest.raises(errors.ConfigError, match="one key twice"):
        keyring.sign(root)
    assert not keyring.draft.exists() and keyring.root().signed.version == 1
    roles.sign(root, keyring.signers(root.signed.roles[Root.type].keyids))  # or the signer fails
    with pytest.raises(errors.RequestError, match=f"{first} and as {'cd' * 32}"):
        await begun.with_registry(lambda registry: registry.publish([root.to_bytes()]))


async def test_rotated_keys_are_accepted_by_devices(begun: RegistrySite) -> None:
    keyring = begun.keyring

    def exchanging(registry: Registry) -> None:
        for role in (Root.type, Targets.type):
            old = keyring.root().signed.roles[role].keyids[0]
            keyring.replace_key(role, old, begun.now_s(), never=old)
            (keyring.folder / f"{role}-{short(old)}.key").unlink()
        with pytest.raises(errors.ConfigError, match="names already"):
            keyring.name_online(registry.online_key(), begun.now_s())
        online = registry.online_key(fresh=True)
        assert online.keyid != registry.status().online_key
        keyring.name_online(online, begun.now_s())
        versions = publishing.publish(keyring, registry, begun.now_s())
        assert (versions["root"], versions["targets"]) == (4, 3)
        assert registry.status().online_key == online.keyid

    def exchanging_online(registry: Registry) -> str:
        keyring.name_online(registry.online_key(fresh=True), begun.now_s())
        publishing.publish(keyring, registry, begun.now_s())
        return str(registry.status().online_key)

    device = await begun.with_registry(lambda registry: trust_of(begun, registry))
    await begun.with_registry(lambda registry: trust_of(begun, registry).refresh())
    await begun.with_registry(exchanging)
    assert len({await begun.with_registry(exchanging_online) for _ in range(3)}) == 3, "no replaced key returns"
    files = await begun.with_registry(lambda registry: trust_of(begun, registry).refresh())
    assert find_bundle(files, "digits", 1)
    assert device is not None
    await begun.push(open_bundle(DIGITS))


async def test_two_root_key_holders_sign_in_turn(begun: RegistrySite, tmp_path: Path) -> None:
    keyring = begun.keyring
    files = sorted(keyring.folder.glob("root-*.key"))
    away = tmp_path / "safe"
    away.mkdir()
    for file in files[1:]:
        file.rename(away / file.name)
    keyring.renew_root(begun.now_s())
    assert keyring.lacking() == {"own": 1, "before": 1}
    with pytest.raises(errors.ConfigError, match="lacks signatures"):
        keyring.renew_root(begun.now_s())
    assert await begun.with_registry(lambda registry: publishing.publish(keyring, registry, begun.now_s())) is None
    other = Keyring(keyring.folder, elsewhere=[away / files[1].name])
    assert other.sign(other.open_draft()) == {}
    assert not keyring.draft.exists()
    versions = await begun.with_registry(lambda registry: publishing.publish(keyring, registry, begun.now_s()))
    assert versions["root"] == 2


async def test_rolled_back_registry_is_detected_and_repaired(begun: RegistrySite, tmp_path: Path) -> None:
    def refreshed(registry: Registry) -> list[tuple[str, int]]:
        return listed_bundles(trust_of(begun, registry).refresh())

    with begun.gateway.store.database.reading() as connection:
        backup = connection.execute(select(SIGNED)).mappings().all()
    await begun.push(digits_bundle(tmp_path / "two", 2))
    assert await begun.with_registry(refreshed) == [("digits", 1), ("digits", 2)]
    with begun.gateway.store.database.begin() as connection:
        connection.execute(delete(SIGNED))
        connection.execute(insert(SIGNED), [dict(row) for row in backup])
    with pytest.raises(errors.MetadataRollbackError):
        await begun.with_registry(refreshed)
    with pytest.raises(errors.MetadataRollbackError, match="firstline keys publish"):
        await begun.push(digits_bundle(tmp_path / "three", 3))
    await begun.with_registry(
        lambda registry: publishing.publish(begun.keyring, registry, begun.now_s() + 2, recover=True)
    )
    assert await begun.registry.renew(ONLINE_LIFE.total_seconds() + 1)
    assert await begun.with_registry(refreshed) == [("digits", 1), ("digits", 2)]
    await begun.push(open_bundle(tmp_path / "three"))


async def test_bundle_with_an_alias_is_not_removed(begun: RegistrySite, tmp_path: Path) -> None:
    await begun.push(digits_bundle(tmp_path / "two", 2))

    def going(registry: Registry) -> None:
        registry.set_alias("digits", "champion", 1)
        with pytest.raises(errors.ConflictError, match="champion points to digits version 1"):
            remove_bundle(begun.keyring, registry, "digits", 1, begun.now_s())
        registry.set_alias("digits", "champion", 2)
        remove_bundle(begun.keyring, registry, "digits", 1, begun.now_s())
        with pytest.raises(errors.NotFoundError):
            remove_bundle(begun.keyring, registry, "digits", 1, begun.now_s())
        with pytest.raises(errors.ConflictError, match="no longer in the registry"):
            registry.revert_alias("digits", "champion")

    await begun.with_registry(going)
    before = len(await begun.registry.files.all())
    assert await begun.registry.sweep(3600) == 0  # a publisher may be about to list them
    assert await begun.registry.sweep(-3600) == 1  # the manifest of version 1
    assert len(await begun.registry.files.all()) == before - 1


async def test_alias_is_reverted_one_step(begun: RegistrySite, tmp_path: Path) -> None:
    await begun.push(digits_bundle(tmp_path / "two", 2))

    def moving(registry: Registry) -> None:
        registry.set_alias("digits", "champion", 1)
        with pytest.raises(errors.ConflictError, match="nothing to go back to"):
            registry.revert_alias("digits", "champion")
        registry.set_alias("digits", "champion", 2)
        assert registry.revert_alias("digits", "champion").version == 1
        assert [one.version for one in registry.alias_history("digits", "champion")] == [1, 2, 1]
        assert registry.bundle("digits", 1).aliases == ("champion",)
        assert [(one.alias, one.version, one.by) for one in registry.aliases()] == [("champion", 1, "application:ops")]
        registry.remove_alias("digits", "champion")
        assert registry.aliases() == ()
        assert registry.revert_alias("digits", "champion").version == 1

    await begun.with_registry(moving)


async def test_interrupted_pull_resumes_and_replaces_a_damaged_part(begun: RegistrySite, tmp_path: Path) -> None:
    folder, part = tmp_path / "pulled", tmp_path / "pulled.digits@1.part"
    content = (DIGITS / "full.onnx").read_bytes()
    part.mkdir()
    (part / "full.onnx").write_bytes(b"x" * 1000)
    with pytest.raises(errors.IntegrityError, match="pull again"):
        await pulled(begun, folder)
    await pulled(begun, folder)
    folder.rename(part)
    (part / "full.onnx").write_bytes(content[:1000])
    assert (await pulled(begun, folder)).fetched_bytes == len(content) - 1000
    assert (folder / "full.onnx").read_bytes() == content and open_bundle(folder)


async def test_gateway_without_online_key_publishes_nothing(begun: RegistrySite) -> None:
    for file in (begun.folder / "identity").glob("registry-*.key"):
        file.unlink()
    with pytest.raises(errors.NotReadyError, match="none of the online keys"):
        await begun.with_registry(
            lambda registry: publishing.publish(begun.keyring, registry, begun.now_s(), renew=True)
        )
    assert (await begun.with_registry(lambda registry: registry.status())).online_key is None
    with pytest.raises((errors.LinkError, errors.NotFoundError)):
        await begun.with_registry(lambda registry: registry.bundle("nothing", 1))
