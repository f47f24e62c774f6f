"""Secrets stay where they were put: not in logs, answers, states, process lists, or what a value says of itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.digits import scan
from support.forks import run_forked
from support.line import Line, line

from firstline import Client
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_edge.api.access import TokenAccess, parse_tokens
from firstline_edge.cloud.http_link import HttpLink
from firstline_edge.settings.settings import LinkSection

API_TOKEN = "press-hall-4-of-tuesday"  # the agent's own callers'
SHORT = "/firstline/v1/models/digits/infer"


@dataclass(frozen=True)
class Running:
    line: Line
    folder: Path
    device_token: str

    @property
    def secrets(self) -> tuple[str, ...]:
        """Whole, and the parts that would be as good as the whole."""
        return (API_TOKEN, self.device_token, self.device_token.removeprefix("flt_"), self.device_token[8:30])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, beside = tmp_path_factory.mktemp("line"), tmp_path_factory.mktemp("tokens")
    (beside / "callers").write_text(f"app:{API_TOKEN}\n")
    environ = {"FIRSTLINE_EDGE_API__TOKEN_FILE": str(beside / "callers")}
    with line(folder, environ=environ, forked=False) as found:  # its command lines are its own
        yield Running(found, folder, (folder / "device.token").read_text().strip())


def ask_everything(running: Running) -> list[str]:
    """Answers to strangers and callers, with valid and nearly valid tokens."""
    found = []
    for tier, token in ((running.line.agent, API_TOKEN), (running.line.gateway, running.device_token)):
        with httpx.Client(base_url=tier.url) as http:
            for credential in (token, token + "x", token[:-1], f"{token} {token}", "Bearer", ""):
                headers = {"Authorization": f"Bearer {credential}".strip()}
                for method, path in (
                    ("GET", "/v2"),
                    ("GET", "/firstline/v1/status"),
                    ("POST", SHORT),
                    ("GET", "/nothing"),
                ):
                    answer = http.request(
                        method, path, headers=headers, content=b"no picture" if method == "POST" else None
                    )
                    found.append(f"{answer.status_code} {answer.headers} {answer.text}")
            found.append(http.get("/v2", headers={"Authorization": token}).text)
    return found


def commands(running: Running) -> list[str]:
    """What the device's own commands print."""
    config, environ = running.folder / "agent-http.toml", {"PATH": "/usr/bin:/bin"}
    found = []
    for command in (["status"], ["status", "-o", "json"], ["doctor", "-o", "json"], ["run"], ["explain", "nobody"]):
        done = run_forked("firstline_edge", *command, "--config", config, environ=environ, cwd=running.folder)
        found.append(done.stdout + done.stderr)
    return found


def test_no_output_file_or_process_list_holds_a_secret(running: Running) -> None:
    with Client(running.line.agent.url, token=API_TOKEN) as client:
        assert client.infer("digits", {"image": scan()}, route="cloud").answer is not None
    answers = ask_everything(running)
    assert any(answer.startswith("200") for answer in answers) and any(answer.startswith("401") for answer in answers)
    printed = commands(running)
    assert any("listening" in one or "digits" in one for one in printed)
    for text in (*answers, *printed):
        for secret in running.secrets:
            assert secret not in text
    read = 0
    for path in sorted(running.folder.rglob("*")):
        if path.is_file() and path.name != "device.token":
            content = path.read_bytes()
            read += len(content)
            for secret in running.secrets:
                assert secret.encode() not in content, path
    assert read > 10_000  # logs and states are among them
    listed = [command_line(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    ours = [line for line in listed if str(running.folder).encode() in line]
    assert len(ours) >= 2
    for line_ in ours:
        for secret in running.secrets:
            assert secret.encode() not in line_


def test_secrets_are_in_no_repr(tmp_path: Path) -> None:
    callers, token = tmp_path / "callers.token", tmp_path / "link.token"
    callers.write_text(f"app:{API_TOKEN}\n")
    token.write_text(API_TOKEN)
    link = LinkSection(kind="http", url="https://gateway.example.com", token_file=str(token))
    objects = [
        *(link, HttpLink(link), MqttSettings("broker", username="me", password=API_TOKEN)),
        *(TokenAccess(parse_tokens(str(callers), "api.token_file")), Client("http://127.0.0.1:1", token=API_TOKEN)),
    ]
    for value in objects:
        assert API_TOKEN not in repr(value) + str(value)


def command_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
