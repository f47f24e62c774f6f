"""Profiles stored by a gateway: over HTTP, and by `firstline model profile`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from click.testing import Result
from msgspec.structs import replace
from support.gateway import DIGITS
from support.keys import bearer, create_key
from support.profiles import point, profile
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.cli.options import GatewayOptions
from firstline.cli.profile_source import load_profile
from firstline_core.bundle.store import open_bundle
from firstline_core.fleet.profiles import BODY_BYTES, PROFILES_PATH, profile_path
from firstline_core.profile.profile import FORMAT, decode, encode
from firstline_core.profile.summary import accuracies
from firstline_gateway.app import Gateway

PLACE = profile_path("digits", 1, "bench")


class Site:
    """A gateway, and an operator's key."""

    def __init__(self, gateway: Gateway, url: str) -> None:
        self.gateway = gateway
        self.url = url
        self.key = create_key(gateway.settings.store, "ops", "operator")


@pytest.fixture
def site(gateway: Gateway, gateway_url: str) -> Site:
    return Site(gateway, gateway_url)


@pytest_asyncio.fixture
async def keeper(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=site.url, headers=bearer(site.key), timeout=20) as found:
        yield found


async def said(site: Site, *arguments: str | Path, code: int = 0) -> Result:
    return await run(site, "model", "profile", *arguments, code=code)


async def run(site: Site, *arguments: str | Path, code: int = 0) -> Result:
    environment = {"FIRSTLINE_GATEWAY_URL": site.url, "FIRSTLINE_TOKEN": site.key}
    result = await asyncio.to_thread(CliRunner().invoke, app, list(map(str, arguments)), env=environment)
    assert result.exit_code == code, result.output
    return result


async def test_a_stored_profile_is_returned_byte_for_byte(keeper: httpx.AsyncClient) -> None:
    content = encode(profile(1.0, 2.0)).replace(b'"format":1', b'"format": 1,"later":true')
    put = await keeper.put(PLACE, content=content)
    assert put.status_code == 200, put.text
    entry = put.json()
    assert (entry["by"], entry["points"], entry["size_bytes"]) == ("application:ops", 2, len(content))
    found = await keeper.get(PLACE)
    assert found.content == content
    assert (await keeper.get(PLACE, headers={"If-None-Match": found.headers["etag"]})).status_code == 304
    await keeper.put(PLACE, content=encode(profile(3.0)))
    assert (await keeper.get(PLACE, headers={"If-None-Match": found.headers["etag"]})).status_code == 200


@pytest.mark.parametrize(
    ("path", "content", "status", "says"),
    [
        (PLACE, b"{}", 400, "is no profile"),
        (PLACE, b"[" * 100_000, 400, "is no profile"),
        (PLACE, encode(replace(profile(1.0), format=FORMAT + 1)), 400, f"has format {FORMAT + 1}"),
        (PLACE, b" " * (BODY_BYTES + 1), 413, "bytes"),
        (profile_path("digits", 2, "bench"), encode(profile(1.0)), 400, "of digits version 1 on bench"),
        (profile_path("digits", 1, "cam"), encode(profile(1.0)), 400, "that of digits version 1 on cam"),
        (profile_path("digits", 0, "cam"), encode(profile(1.0)), 400, "cannot be a version"),
        (profile_path("a%20b", 1, "cam"), encode(profile(1.0)), 400, "cannot be the name of a bundle"),
    ],
    ids=["empty", "deep", "newer", "long", "version", "machine", "no version", "no name"],
)
async def test_a_profile_of_another_place_is_refused(
    keeper: httpx.AsyncClient, path: str, content: bytes, status: int, says: str
) -> None:
    refused = await keeper.put(path, content=content)
    assert refused.status_code == status and says in refused.json()["detail"], refused.text
    assert (await keeper.get(PROFILES_PATH)).json()["profiles"] == []


async def test_pages_are_followed_and_wrong_cursors_refused(keeper: httpx.AsyncClient) -> None:
    for version in (1, 2, 10):
        made = profile(1.0, version=version)
        assert (await keeper.put(profile_path("digits", version, "bench"), content=encode(made))).is_success
    after, versions = "", []
    while after is not None:
        page = (await keeper.get(PROFILES_PATH, params={"limit": 2, "after": after, "bundle": "digits"})).json()
        versions += [one["version"] for one in page["profiles"]]
        after = page["after"]
    assert versions == [1, 2, 10]
    for wrong in ({"after": "digits"}, {"after": "//"}, {"limit": 0}, {"bundle": "a b"}):
        assert (await keeper.get(PROFILES_PATH, params=wrong)).status_code == 400, wrong


async def test_changes_are_in_the_audit_log(keeper: httpx.AsyncClient) -> None:
    await keeper.put(PLACE, content=encode(profile(1.0)))
    assert (await keeper.delete(PLACE)).status_code == 200
    missing = await keeper.delete(PLACE)
    assert missing.status_code == 404 and "on bench" in missing.json()["detail"]
    assert (await keeper.get(PLACE)).status_code == 404
    entries = (await keeper.get("/fleet/v1/audit", params={"subject": "profile:digits/1"})).json()["entries"]
    assert [one["action"] for one in entries] == ["profile.put", "profile.remove"]


async def test_the_command_pushes_lists_shows_and_removes(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "digits@bench.json"
    file.write_bytes(encode(profile(1.0, 2.0)))
    assert "digits version 1 on bench: 2 points" in (await said(site, "push", file)).stdout
    (listed,) = json.loads((await said(site, "ls", "digits", "-o", "json")).stdout)
    assert (listed["machine"], listed["points"]) == ("bench", 2)
    assert "bench" in (await said(site, "ls", "--machine", "bench")).stdout
    assert json.loads((await said(site, "ls", "--machine", "cam", "-o", "json")).stdout) == []
    shown = (await said(site, "show", "digits", "1", "bench", "-o", "json")).stdout
    assert decode(shown.encode(), "what was shown") == profile(1.0, 2.0)
    assert "digits version 1 on bench" in (await said(site, "show", "digits", "1", "bench")).stdout
    assert "is forgotten" in (await said(site, "rm", "digits", "1", "bench")).stdout
    assert "There is no stored profile" in (await said(site, "show", "digits", "1", "bench", code=1)).output


async def test_a_stored_profile_shows_its_pareto_front(site: Site, keeper: httpx.AsyncClient) -> None:
    """The accuracy comes from the bundle's folder, or else from the profile."""
    manifest = open_bundle(DIGITS).manifest
    points = tuple(point(1.0 + at, variant=one.id, digest=one.digest) for at, one in enumerate(manifest.models))
    for machine, accuracy in (("bench", {}), ("knows", accuracies(manifest))):
        made = encode(replace(profile(machine=machine), points=points, accuracy=accuracy))
        assert (await keeper.put(profile_path("digits", 1, machine), content=made)).is_success
    shown = (await said(site, "show", DIGITS, "1", "bench")).stdout
    assert " % +" in shown and "on the Pareto front" in shown
    assert "on the Pareto front" in (await said(site, "show", "digits", "1", "knows")).stdout


async def test_a_file_that_is_no_profile_is_not_sent(site: Site, tmp_path: Path) -> None:
    assert "There is no profile at" in (await said(site, "push", tmp_path / "none.json", code=2)).output
    (tmp_path / "other.json").write_text("{}")
    assert "is no profile" in (await said(site, "push", tmp_path / "other.json", code=2)).output


@pytest.mark.parametrize("named", ["bench", "digits/2/bench"])
async def test_compress_uses_a_stored_profile(
    site: Site, keeper: httpx.AsyncClient, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes the latest profile of a machine, or the named one; a folder with the machine's name is ignored."""
    own = point(1.0, digest=open_bundle(DIGITS).manifest.edge[0].digest)
    made = {version: replace(profile(1.0, version=version), points=(own,)) for version in (1, 2)}
    for version, each in made.items():
        assert (await keeper.put(profile_path("digits", version, "bench"), content=encode(each))).is_success
    (tmp_path / "bench").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIRSTLINE_TOKEN", site.key)
    refused = await run(site, "compress", DIGITS, "--data", DIGITS.parent / "heldout", "--for", named, code=2)
    assert "The profile is of 'bench', which is not this machine" in " ".join(refused.output.split())
    found = await asyncio.to_thread(load_profile, named, "digits", GatewayOptions(site.url))
    assert found == made[2]


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("bench", "The gateway keeps no profile of digits on bench"),
        ("digits/3/bench", "There is no stored profile of digits version 3 on bench"),
        ("digits/bench", "'digits/bench' is no file, and no profile that a gateway could keep"),
        ("digits/0/bench", "is no file, and no profile"),
        ("a b", "'a b' is no file"),
        ("bench.json", "There is no profile at bench.json"),
    ],
)
async def test_a_missing_stored_profile_is_one_sentence(site: Site, named: str, says: str) -> None:
    command = ("compress", DIGITS, "--data", DIGITS.parent / "heldout", "--for", named)
    refused = await run(site, *command, code=1 if "stored" in says else 2)
    assert says in " ".join(refused.output.split())
    if "keeps" in says:
        alone = await run(site, *command, "--gateway", "", code=2)
        assert "no gateway is named that may keep such a profile" in " ".join(alone.output.split())
