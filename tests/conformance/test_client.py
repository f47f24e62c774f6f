"""The conformance suite's command line over real HTTP: exit codes, files kept, requests made.

The suite itself is `make tuf-conformance`; this shows without it that the tool keeps to its protocol.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path

import pytest
from support.forks import run_forked
from support.http_answers import answering

from bench.support.signed_repository import DAY, SignedRepository
from firstline_core.errors import NotFoundError

CLIENT = Path(__file__).with_name("client.py")


class Server:
    """A repository behind HTTP, and a client's folders."""

    def __init__(self, folder: Path, repository: SignedRepository) -> None:
        self.folder = folder
        self.repository = repository
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.url = ""
        (folder / "metadata").mkdir()

    def answer(self, path: str, _headers: Message, _body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        kind, _, name = path.removeprefix("/").partition("/")
        try:
            return 200, {}, b"".join(self.repository.fetch(name)) if kind == "metadata" else self.blobs[name]
        except (NotFoundError, KeyError):
            return 404, {}, b""

    def run(self, *arguments: str) -> tuple[int, str]:
        """The tool's exit code, and what it said."""
        options = ("--metadata-dir", str(self.folder / "metadata"), "--metadata-url", f"{self.url}/metadata")
        done = run_forked(str(CLIENT), *options, *arguments)
        return done.returncode, done.stderr

    def download(self, name: str) -> tuple[int, str]:
        options = ("--target-name", name, "--target-base-url", f"{self.url}/targets")
        return self.run(*options, "--target-dir", str(self.folder / "targets"), "download")

    def version(self, role: str) -> int:
        return int(json.loads((self.folder / "metadata" / f"{role}.json").read_bytes())["signed"]["version"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path, SignedRepository(datetime.now(UTC).replace(microsecond=0)))
    (tmp_path / "anchor.json").write_bytes(found.repository.anchor)
    with answering(found.answer) as found.url:
        assert found.run("init", str(tmp_path / "anchor.json")) == (0, "")
        assert found.asked == []
        yield found


def test_metadata_is_refreshed_and_stored(server: Server) -> None:
    assert server.run("refresh") == (0, "")
    names = [
        "/metadata/2.root.json",
        "/metadata/timestamp.json",
        "/metadata/1.snapshot.json",
        "/metadata/1.targets.json",
    ]
    assert server.asked == names
    assert [server.version(role) for role in ("root", "timestamp", "snapshot", "targets")] == [1, 1, 1, 1]
    server.repository.root.version = 2
    server.repository.publish_root()
    server.repository.publish()
    assert server.run("refresh") == (0, "")
    assert [server.version(role) for role in ("root", "timestamp", "snapshot", "targets")] == [2, 2, 2, 2]


def test_refused_metadata_exits_with_1_and_keeps_the_trusted(server: Server) -> None:
    assert server.run("refresh") == (0, "")
    older = server.repository.files["timestamp.json"]
    server.repository.publish()
    assert server.run("refresh") == (0, "")
    server.repository.files["timestamp.json"] = older
    code, output = server.run("refresh")
    assert code == 1 and output.startswith("MetadataRollbackError: timestamp.json")
    assert server.version("timestamp") == 2
    server.repository.timestamp.expires = datetime.now(UTC) - DAY
    server.repository.publish()
    code, output = server.run("refresh")
    assert code == 1 and output.startswith("MetadataExpiredError")


def test_target_is_downloaded_once_and_verified(server: Server) -> None:
    server.repository.add("a/model.onnx", b"weights")
    server.repository.publish()
    name = f"a/{hashlib.sha256(b'weights').hexdigest()}.model.onnx"
    server.blobs[name] = b"weighty"
    code, output = server.download("a/model.onnx")
    assert (code, "not what was signed" in output) == (1, True)
    server.blobs[name] = b"weights" * 1000
    assert server.download("a/model.onnx")[0] == 1
    server.blobs[name] = b"weights"
    assert server.download("a/model.onnx") == (0, "")
    server.asked.clear()
    assert server.download("a/model.onnx") == (0, "")
    assert f"/targets/{name}" not in server.asked
    assert (server.folder / "targets" / "a%2Fmodel.onnx").read_bytes() == b"weights"
    assert server.download("none")[0] == 1
