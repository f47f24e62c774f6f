"""Profiles stored by a gateway: over HTTP, and by `firstline model profile`."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import Result
from msgspec.structs import replace
from support.commands import firstline
from support.gateway import DIGITS
from support.profiles import point, profile

from firstline.cli.options import GatewayOptions
from firstline.cli.profile_source import load_profile
from firstline_core.bundle.store import open_bundle
from firstline_core.fleet.profiles import BODY_BYTES, PROFILES_PATH, profile_path
from firstline_core.profile.profile import decode, encode
from firstline_core.profile.summary import accuracies
from firstline_core.storage.structs import FORMAT

Command = Callable[..., Awaitable[Result]]
PLACE = profile_path("digits", 1, "bench")


@pytest.fixture
def run(operator: httpx.AsyncClient) -> Command:
    return partial(firstline, str(operator.base_url), operator.headers["Authorization"].removeprefix("Bearer "))


async def test_a_stored_profile_is_returned_byte_for_byte(operator: httpx.AsyncClient) -> None:
    content = encode(profile(1.0, 2.0)).replace(b'"format":1', b'"format": 1,"later":true')
    put = await operator.put(PLACE, content=content)
    assert put.status_code == 200, put.text
    entry = put.json()
    assert (entry["by"], entry["points"], entry["size_bytes"]) == ("application:ops", 2, len(content))
    found = await operator.get(PLACE)
    assert found.content == content
    assert (await operator.get(PLACE, headers={"If-None-Match": found.headers["etag"]})).status_code == 304
    await operator.put(PLACE, content=encode(profile(3.0)))
    assert (await operator.get(PLACE, headers={"If-None-Match": found.headers["etag"]})).status_code == 200


MISPLACED = [
    (PLACE, b"{}", 400, "is not a profile"),
    (PLACE, b"[" * 100_000, 400, "is not a profile"),
    (PLACE, encode(replace(profile(1.0), format=FORMAT + 1)), 400, f"has format {FORMAT + 1}"),
    (PLACE, b" " * (BODY_BYTES + 1), 413, "bytes"),
    (profile_path("digits", 2, "bench"), encode(profile(1.0)), 400, "of digits version 1 on bench"),
    (profile_path("digits", 1, "cam"), encode(profile(1.0)), 400, "that of digits version 1 on cam"),
    (profile_path("digits", 0, "cam"), encode(profile(1.0)), 400, "cannot be a version"),
    (profile_path("a%20b", 1, "cam"), encode(profile(1.0)), 400, "cannot be the name of a bundle"),
]


async def test_a_profile_of_another_place_is_refused(operator: httpx.AsyncClient) -> None:
    for path, content, status, detail in MISPLACED:
        refused = await operator.put(path, content=content)
        assert refused.status_code == status and detail in refused.json()["detail"], (path, refused.text)
        assert (await operator.get(PROFILES_PATH)).json()["profiles"] == []


async def test_pages_are_followed_and_wrong_cursors_refused(operator: httpx.AsyncClient) -> None:
    for version in (1, 2, 10):
        new_profile = profile(1.0, version=version)
        assert (await operator.put(profile_path("digits", version, "bench"), content=encode(new_profile))).is_success
    after, versions = "", []
    while after is not None:
        page = (await operator.get(PROFILES_PATH, params={"limit": 2, "after": after, "bundle": "digits"})).json()
        versions += [one["version"] for one in page["profiles"]]
        after = page["after"]
    assert versions == [1, 2, 10]
    for wrong in ({"after": "digits"}, {"after": "//"}, {"limit": 0}, {"bundle": "a b"}):
        assert (await operator.get(PROFILES_PATH, params=wrong)).status_code == 400, wrong


async def test_changes_are_in_the_audit_log(operator: httpx.AsyncClient) -> None:
    await operator.put(PLACE, content=encode(profile(1.0)))
    assert (await operator.delete(PLACE)).status_code == 200
    missing = await operator.delete(PLACE)
    assert missing.status_code == 404 and "on bench" in missing.json()["detail"]
    assert (await operator.get(PLACE)).status_code == 404
    entries = (await operator.get("/fleet/v1/audit", params={"subject": "profile:digits/1"})).json()["entries"]
    assert [one["action"] for one in entries] == ["profile.put", "profile.remove"]


async def test_the_command_pushes_lists_shows_and_removes(run: Command, tmp_path: Path) -> None:
    assert "There is no profile at" in (await run("profile", "push", tmp_path / "none.json", code=2)).output
    file = tmp_path / "digits@bench.json"
    file.write_text("{}")
    assert "is not a profile" in (await run("profile", "push", file, code=2)).output
    file.write_bytes(encode(profile(1.0, 2.0)))
    assert "digits version 1 on bench: 2 points" in (await run("profile", "push", file)).stdout
    (listed,) = json.loads((await run("profile", "list", "digits", "-o", "json")).stdout)
    assert (listed["machine"], listed["points"]) == ("bench", 2)
    assert "bench" in (await run("profile", "list", "--machine", "bench")).stdout
    assert json.loads((await run("profile", "list", "--machine", "cam", "-o", "json")).stdout) == []
    shown = (await run("profile", "get", "digits", "1", "bench", "-o", "json")).stdout
    assert decode(shown.encode(), "what was shown") == profile(1.0, 2.0)
    assert "digits version 1 on bench" in (await run("profile", "get", "digits", "1", "bench")).stdout
    assert "is forgotten" in (await run("profile", "delete", "digits", "1", "bench")).stdout
    assert "There is no stored profile" in (await run("profile", "get", "digits", "1", "bench", code=1)).output


async def test_a_stored_profile_shows_its_pareto_front(run: Command, operator: httpx.AsyncClient) -> None:
    """The accuracy comes from the bundle's folder, or else from the profile."""
    manifest = open_bundle(DIGITS).manifest
    points = tuple(point(1.0 + at, variant=one.id, digest=one.digest) for at, one in enumerate(manifest.models))
    for machine, accuracy in (("bench", {}), ("knows", accuracies(manifest))):
        content = encode(replace(profile(machine=machine), points=points, accuracy=accuracy))
        assert (await operator.put(profile_path("digits", 1, machine), content=content)).is_success
    shown = (await run("profile", "get", DIGITS, "1", "bench")).stdout
    assert " % +" in shown and "on the Pareto front" in shown
    assert "on the Pareto front" in (await run("profile", "get", "digits", "1", "knows")).stdout


async def test_a_prediction_uses_a_stored_profile(
    run: Command, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, ms in ((1, 1.0), (2, 2.0)):
        content = encode(replace(profile(ms), version=version))
        assert (await operator.put(profile_path("digits", version, "bench"), content=content)).is_success
    monkeypatch.setenv("FIRSTLINE_TOKEN", operator.headers["Authorization"].removeprefix("Bearer "))
    found = await asyncio.to_thread(load_profile, "digits/2/bench", GatewayOptions(str(operator.base_url)))
    assert found.version == 2
    named = f"{found.points[0].key.variant}=1"
    assert "digits version 2 on bench" in (await run("profile", "predict", "digits/2/bench", named)).output


async def test_a_missing_stored_profile_is_one_sentence(run: Command) -> None:
    for named, message in (
        ("digits/3/bench", "There is no stored profile of digits version 3 on bench"),
        ("digits/bench", "There is no file digits/bench; check the path, or name a stored profile as BUNDLE/VERSION"),
        ("digits/0/bench", "There is no file digits/0/bench; check the path"),
        ("a b", "There is no file a b; check the path"),
        ("bench.json", "There is no profile at bench.json"),
    ):
        refused = await run("profile", "predict", named, "edge=1", code=1 if "stored profile of" in message else 2)
        assert message in " ".join(refused.output.split())
    alone = await run("profile", "predict", "digits/3/bench", "edge=1", "--gateway", "", code=2)
    assert "and no gateway is named" in " ".join(alone.output.split())
