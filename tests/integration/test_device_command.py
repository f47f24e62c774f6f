"""`firstline device` against a real gateway over TLS: invite one or a list, list, revoke."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import Result
from support.tls_site import TlsSite, tls_site
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline_core.protocol.enrolment import parse_join_token
from firstline_edge.identity.enrolment import join_gateway
from firstline_edge.identity.files import IdentityFiles

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsSite]:
    async with tls_site(tmp_path_factory.mktemp("site")) as found:
        yield found


async def command(gateway: TlsSite, *arguments: str | Path, key: str | None = None) -> Result:
    authority = gateway.folder / "identity" / "authorities.pem"
    key = gateway.operator.headers["authorization"].removeprefix("Bearer ") if key is None else key
    first, *others = map(str, arguments)
    argv = ["device", first, "--gateway", gateway.url, "--ca", str(authority), *others]
    return await asyncio.to_thread(CliRunner().invoke, app, argv, env={"FIRSTLINE_TOKEN": key})


async def test_printed_token_lets_the_device_join(gateway: TlsSite, tmp_path: Path) -> None:
    enrolled = await command(gateway, "enroll", "press-7")
    assert enrolled.exit_code == 0, enrolled.output
    identity = await join_gateway(gateway.url, parse_join_token(enrolled.stdout), IdentityFiles(tmp_path))
    assert identity.device == "press-7"
    listed = json.loads((await command(gateway, "list", "-o", "json")).stdout)
    assert [one["name"] for one in listed if one["enrolled_s"]] == ["press-7"]

    revoked = await command(gateway, "revoke", "press-7")
    assert (revoked.exit_code, revoked.stdout) == (0, "revoked press-7\n")
    again = await command(gateway, "revoke", "press-7", "-o", "json")
    assert json.loads(again.stdout) == {"revoked": ["press-7"]}
    lines = (await command(gateway, "list")).stdout.splitlines()
    assert any("press-7" in line and "revoked" in line and "invited" not in line for line in lines)
    assert (await command(gateway, "enroll", "press-7")).exit_code == 0
    (device,) = json.loads((await command(gateway, "list", "-o", "json")).stdout)
    assert device["revoked_s"] and device["invited_until_s"]
    (line,) = [line for line in (await command(gateway, "list")).stdout.splitlines() if "press-7" in line]
    assert "revoked 20" in line and ", invited until 20" in line


async def test_tokens_are_written_to_files_or_one_csv(gateway: TlsSite, tmp_path: Path) -> None:
    names = [f"cam-{number}" for number in range(1200)]
    (tmp_path / "list.csv").write_text("\ufeffsite, name \n" + "".join(f"hall,{name}\n" for name in names))
    enrolled = await command(gateway, "enroll", "--csv", tmp_path / "list.csv", "--out", tmp_path / "tokens")
    assert enrolled.exit_code == 0, enrolled.output
    assert enrolled.stdout == ""
    files = sorted(path.name for path in (tmp_path / "tokens").iterdir())
    assert files == sorted(f"{name}.token" for name in names)
    assert stat.S_IMODE((tmp_path / "tokens" / files[0]).stat().st_mode) == 0o600

    (tmp_path / "tokens.csv").touch(0o666)
    enrolled = await command(gateway, "enroll", "one", "two", "--out", tmp_path / "tokens.csv", "-o", "json")
    assert stat.S_IMODE((tmp_path / "tokens.csv").stat().st_mode) == 0o600
    assert [each["device"] for each in json.loads(enrolled.stdout)] == ["one", "two"]
    lines = (tmp_path / "tokens.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["name", "one", "two"]
    parse_join_token(lines[1].split(",")[1])
    assert len(json.loads((await command(gateway, "list", "-o", "json")).stdout)) >= 1200  # page after page


async def test_invalid_line_of_the_list_is_named(gateway: TlsSite, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("name\ngood\nnot good\n")
    found = await command(gateway, "enroll", "--csv", tmp_path / "list.csv")
    assert found.exit_code == 2
    assert "list.csv:3: the name 'not good' cannot be used" in found.stderr
    (tmp_path / "list.csv").write_text("name;site\na;hall\n")
    found = await command(gateway, "enroll", "--csv", tmp_path / "list.csv")
    assert "has no column 'name'; its first line has to name the columns, with commas" in found.stderr
    assert "'name;site'" in found.stderr
