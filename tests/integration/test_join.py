"""`edge-agent join` against a real gateway over real TLS: the first certificate, again, interrupted, and deceived."""

import asyncio
import io
import json
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest
import pytest_asyncio
from msgspec.structs import replace
from support.tls_site import TlsSite, tls_site

from firstline_core.clock import SYSTEM_CLOCK
from firstline_edge.__main__ import main
from firstline_edge.cli.doctor_links import link_findings
from firstline_edge.identity.credentials import Credentials, DeviceIdentity
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.settings.load import load

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsSite]:
    async with tls_site(tmp_path_factory.mktemp("site")) as found:
        yield found


class Device:
    """A state directory, and the command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.state_dir = folder / "state"
        self.files = IdentityFiles(self.state_dir)

    async def join(self, url: str, *arguments: str | Path, stdin: str = "") -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        argv = ["edge-agent", "join", url, *map(str, arguments), "--set", f"agent.state_dir={self.state_dir}"]
        with patch.object(sys, "argv", argv), patch.object(sys, "stdin", io.StringIO(stdin)):
            code = await asyncio.to_thread(main)
        return code, *self._capsys.readouterr()


@pytest.fixture
def device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Device:
    return Device(tmp_path, capsys)


async def test_a_joined_device_needs_no_link_settings(gateway: TlsSite, device: Device) -> None:
    token = await gateway.token_file("press-7")
    code, out, stderr = await device.join(gateway.url, "--token-file", token)
    assert (code, stderr) == (0, "")
    assert f"joined {gateway.url} as press-7" in out
    assert f"the identity is stored in {device.files.folder}" in out

    found = load(None, environ={}, overrides={"agent.state_dir": str(device.state_dir)})
    assert found.device_id == "press-7"
    assert [(link.kind, link.url, link.shows_identity) for link in found.links] == [("http", gateway.url, True)]
    for path in (device.files.folder, *device.files.folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert "PRIVATE KEY" not in (device.files.folder / "identity.json").read_text()
    assert device.files.joining_key() is None


async def test_token_is_read_from_stdin(gateway: TlsSite, device: Device) -> None:
    token = (await gateway.token_file("press-7")).read_text()
    code, out, _ = await device.join(gateway.url, "--token-file", "-", "-o", "json", stdin=token)
    assert code == 0
    assert json.loads(out)["device"] == "press-7"


async def test_a_token_joins_one_device_once(
    gateway: TlsSite, device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = await gateway.token_file("press-7")
    await device.join(gateway.url, "--token-file", token)
    before = device.files.device.read_bytes()
    code, out, _ = await device.join(gateway.url, "--token-file", token)
    assert code == 0
    assert "already joined" in out
    assert "the token was not used; --force joins again" in out
    assert device.files.device.read_bytes() == before
    other = Device(tmp_path / "other", capsys)
    code, _, stderr = await other.join(gateway.url, "--token-file", token)
    assert code == 1
    assert "the join token is not valid here" in stderr.lower()
    assert other.files.read() is None


async def test_an_interrupted_join_gets_the_same_certificate(gateway: TlsSite, device: Device) -> None:
    token = await gateway.token_file("press-7")
    await device.join(gateway.url, "--token-file", token)
    certificate = device.files.device.read_text()
    # As a power cut leaves it that came after the gateway's answer and before it was kept.
    key = certificate.partition("-----BEGIN CERTIFICATE-----")[0]
    for path in device.files.folder.iterdir():
        path.unlink()
    device.files.save_joining_key(key)
    code, out, _ = await device.join(gateway.url, "--token-file", token)
    assert code == 0, out
    assert device.files.device.read_text() == certificate


async def test_an_impostor_receives_no_token(gateway: TlsSite, device: Device, tmp_path: Path) -> None:
    token = await gateway.token_file("press-7")
    async with tls_site(tmp_path / "impostor") as impostor:
        code, _, stderr = await device.join(impostor.url, "--token-file", token)
    assert code == 1
    assert "is not the gateway that the join token is from" in stderr
    # The token was not sent, so it still enrols.
    assert (await device.join(gateway.url, "--token-file", token))[0] == 0


async def test_another_gateway_needs_force(gateway: TlsSite, device: Device, tmp_path: Path) -> None:
    await device.join(gateway.url, "--token-file", await gateway.token_file("press-7"))
    async with tls_site(tmp_path / "second") as second:
        token = await second.token_file("line-2")
        code, _, stderr = await device.join(second.url, "--token-file", token)
        assert (code, "--force" in stderr) == (2, True)
        code, out, _ = await device.join(second.url, "--token-file", token, "--force")
        assert (code, "as line-2" in out) == (0, True)


async def test_a_device_of_another_authority_must_join_again(gateway: TlsSite, device: Device, tmp_path: Path) -> None:
    await device.join(gateway.url, "--token-file", await gateway.token_file("press-7"))
    settings = load(None, environ={}, overrides={"agent.state_dir": str(device.state_dir)})
    async with tls_site(tmp_path / "second") as second:
        moved = replace(settings, links=(replace(settings.links[0], url=second.url),))
        [finding], _ = await link_findings(moved, credentials=DeviceIdentity(moved, SYSTEM_CLOCK).credentials)
    assert finding.detail.endswith(
        "in tls_ca_file of this link, or join the gateway again with --force and restart the agent."
    )


@pytest.mark.parametrize(
    ("url", "text", "code", "sentence"),
    [
        ("https://", "flj_x.y", 2, "is not the URL of a gateway with TLS"),
        ("https://me:secret@127.0.0.1:9", "flj_x.y", 2, "names a user or a password"),
        ("https://127.0.0.1:9", "flj_x.y", 2, "The join token is damaged"),
    ],
)
async def test_invalid_arguments_are_explained(device: Device, url: str, text: str, code: int, sentence: str) -> None:
    found, _, stderr = await device.join(url, "--token-file", "-", stdin=text)
    assert found == code
    assert sentence in stderr
    assert text not in stderr


async def test_an_absent_token_file_is_named(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge-agent.toml").touch()
    code, _, stderr = await device.join("https://127.0.0.1:9", "--token-file", tmp_path / "none")
    assert code == 2
    assert "does not exist; create it with the join token" in stderr
    assert "edge-agent.toml in this folder is not used; to use it: --config edge-agent.toml" in stderr


async def test_a_refusing_disk_is_explained(gateway: TlsSite, device: Device) -> None:
    token = await gateway.token_file("press-7")
    device.state_dir.write_text("in the way")
    code, _, stderr = await device.join(gateway.url, "--token-file", token)
    assert code in (1, 2)
    assert str(device.state_dir) in stderr


@pytest.mark.parametrize("name", ["identity.json", "device.pem", "ca.pem"])
async def test_agent_starts_with_a_damaged_identity(gateway: TlsSite, device: Device, name: str) -> None:
    await device.join(gateway.url, "--token-file", await gateway.token_file("press-7"))
    (device.files.folder / name).write_bytes(b"\xff\x00 rotten")
    settings = load(None, environ={}, overrides={"agent.state_dir": str(device.state_dir)})
    if name == "identity.json":
        assert settings.links == ()
    else:
        identity = device.files.read()
        assert identity is not None
        assert "join again" in Credentials(device.files, identity, device.files.revision(), SYSTEM_CLOCK).problem
