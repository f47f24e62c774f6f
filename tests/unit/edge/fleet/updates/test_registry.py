"""The registry of the gateway: metadata that is verified in a separate process, and its failures."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.support.signed_repository import DAY, START, SignedRepository
from firstline_core import errors
from firstline_core.bundle.trust import MetadataSource
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.updates.registry import GatewayRegistry, verified_files
from firstline_edge.settings.settings import LinkSection


def look(
    folder: Path, repository: SignedRepository, source: MetadataSource | None = None, days: float = 0.0
) -> list[str]:
    now_s = (START + days * DAY).timestamp()
    return sorted(verified_files(folder, source or repository, anchor=repository.anchor, now_s=now_s))


def test_signed_files_are_listed_with_their_description(tmp_path: Path) -> None:
    repository = SignedRepository()
    repository.add("digits/1/a", b"content", needs=["edge"])
    repository.parts = lambda _name, content: iter([b"", content[:7], b"", content[7:]])
    repository.publish()
    found = verified_files(tmp_path, repository, anchor=repository.anchor, now_s=START.timestamp())
    sha256 = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    assert found == {"digits/1/a": SignedFile("digits/1/a", 7, sha256, {"needs": ["edge"]})}
    assert repository.asked[0] == "2.root.json"  # a missing next root does not fail the refresh
    assert (tmp_path / "timestamp.json").exists()


class _Endless:
    def fetch(self, name: str) -> Iterator[bytes]:
        while True:
            yield b"x" * 65_536


class _Refusing:
    def __init__(self, error: errors.FirstlineError) -> None:
        self._error = error

    def fetch(self, name: str) -> Iterator[bytes]:
        yield b"{"
        raise self._error


def test_each_refusal_has_its_own_error_and_keeps_trusted_metadata(tmp_path: Path) -> None:
    repository = SignedRepository()
    assert look(tmp_path, repository) == []
    trusted = (tmp_path / "timestamp.json").read_bytes()
    with pytest.raises(
        errors.MetadataExpiredError, match=r"expired.*this device's clock, which shows 2027-01-03T00:00\S*, is wrong"
    ):
        look(tmp_path, repository, days=2)
    with pytest.raises(errors.IntegrityError, match="goes on after"):
        look(tmp_path, repository, _Endless())
    with pytest.raises(errors.RateLimitedError) as limited:
        look(tmp_path, repository, _Refusing(errors.RateLimitedError("slowly", retry_after_s=7.5)))
    assert limited.value.retry_after_s == 7.5
    changed = repository.files["timestamp.json"].replace(b"2027-01-02", b"2027-01-03")
    assert changed != repository.files["timestamp.json"]
    repository.files["timestamp.json"] = changed
    with pytest.raises(errors.SignatureError):
        look(tmp_path, repository)
    assert (tmp_path / "timestamp.json").read_bytes() == trusted


class _Killing:
    """Kills the process that requests a file, as a kernel without memory does."""

    def __init__(self, repository: SignedRepository, name: str) -> None:
        self._repository = repository
        self._name = name
        self._before = _children()

    def fetch(self, name: str) -> Iterator[bytes]:
        if name.endswith(self._name):
            (child,) = _children() - self._before
            os.kill(child, signal.SIGKILL)
        return self._repository.fetch(name)


def _children() -> set[int]:
    """This thread's; tests before may have left some of their own."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return {int(pid) for pid in path.read_text().split()}


def test_a_killed_verifier_is_a_temporary_error(tmp_path: Path) -> None:
    repository = SignedRepository()
    repository.add("digits/1/a", b"content")
    repository.publish()
    before = _children()
    with pytest.raises(errors.CapacityError, match="was killed by SIGKILL") as killed:
        look(tmp_path, repository, _Killing(repository, "targets.json"))
    assert killed.value.retryable
    assert _children() <= before
    assert look(tmp_path, repository) == ["digits/1/a"]


_SAYS = "import os, sys; sys.stdin.buffer.read(4); sys.stdout.buffer.write({}); sys.stdout.flush()"


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("import time; time.sleep(600)", errors.CapacityError, "said nothing for 0.2 s"),
        ("raise SystemExit(3)", errors.CapacityError, "exit code 3"),
        (_SAYS.format("(2**31).to_bytes(4, 'big')"), errors.ProtocolError, "2147483648 bytes"),
        (_SAYS.format("b'\\0\\0\\0\\1x'"), errors.ProtocolError, "not understood"),
    ],
)
def test_a_broken_verifier_ends_with_an_error(
    tmp_path: Path, script: str, kind: type[errors.FirstlineError], words: str
) -> None:
    limit_s = 0.2 if "sleep" in script else 60.0
    command = (sys.executable, "-c", script)
    before = _children()
    with pytest.raises(kind, match=words):
        verified_files(tmp_path, SignedRepository(), anchor=b"", now_s=0.0, limit_s=limit_s, command=command)
    assert _children() <= before


def test_a_verifier_that_cannot_start_is_a_temporary_error(tmp_path: Path) -> None:
    command = (str(tmp_path / "none"),)
    with pytest.raises(errors.CapacityError, match="no such file"):
        verified_files(tmp_path, SignedRepository(), anchor=b"", now_s=0.0, command=command)


def test_the_verifier_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLINE_EDGE_LINKS__TOKEN", "secret")
    environment = (
        "os.environ.get('FIRSTLINE_EDGE_LINKS__TOKEN', 'nothing'), 'HOME' in os.environ or 'PATH' in os.environ"
    )
    script = f"import os, sys; from firstline_edge.fleet.updates.metadata_verifier import Failure, send; \
send(sys.stdout.buffer, Failure('update', repr(({environment}))))"
    with pytest.raises(errors.FirstlineError, match=r"\('nothing', True\)"):
        verified_files(tmp_path, SignedRepository(), anchor=b"", now_s=0.0, command=(sys.executable, "-c", script))


_LOOKS = """
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
import msgspec
import firstline_edge.fleet.updates.registry
from firstline_core.errors import NotFoundError
from firstline_edge.fleet.updates.registry import verified_files

class Files:
    def fetch(self, name):
        content = FILES.get(name)
        if content is None:
            raise NotFoundError("none")
        yield content

FILES, now_s = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[dict[str, bytes], float])
print(len(verified_files(Path(sys.argv[1]), Files(), anchor=FILES["1.root.json"], now_s=now_s)))
print({name.partition(".")[0] for name in sys.modules} & {"tuf", "securesystemslib", "urllib3", "cryptography"})
"""


def test_the_agent_does_not_load_python_tuf(tmp_path: Path) -> None:
    repository = SignedRepository()
    repository.add("digits/1/a", b"content")
    repository.publish()
    request = msgspec.msgpack.encode((repository.files, START.timestamp()))
    done = subprocess.run([sys.executable, "-c", _LOOKS, str(tmp_path)], input=request, capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == ["1", "set()"]


async def test_a_missing_token_file_is_a_temporary_error(tmp_path: Path) -> None:
    token, root = tmp_path / "token", tmp_path / "root.json"
    token.write_text("secret")
    root.write_text("{}")
    http = FleetHttp(LinkSection(kind="http", url="http://127.0.0.1:9", token_file=str(token)), None)
    token.unlink()
    registry = GatewayRegistry(http, tmp_path / "metadata", str(root), SYSTEM_CLOCK.wall_s)
    with pytest.raises(errors.LinkDownError, match="token"):
        await registry.files()
    await http.close()


async def test_a_device_without_an_http_link_gets_advice(tmp_path: Path) -> None:
    registry = GatewayRegistry(None, tmp_path, "", SYSTEM_CLOCK.wall_s)
    with pytest.raises(errors.LinkDownError, match=r"kind = \"http\""):
        await registry.files()
    with pytest.raises(errors.LinkDownError, match=r"kind = \"http\""):
        async for _ in registry.read("0" * 64, 0, 1):
            pass


_SILENT = """
import asyncio, socket, sys
from pathlib import Path
from firstline_core.clock import SYSTEM_CLOCK
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.settings.settings import LinkSection
from firstline_edge.fleet.updates.registry import GatewayRegistry

async def main():
    asked = asyncio.Event()
    server = await asyncio.start_server(lambda reader, writer: asked.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
    folder = Path(sys.argv[1])
    registry = GatewayRegistry(http, folder, sys.argv[2], SYSTEM_CLOCK.wall_s)
    looking = asyncio.create_task(registry.files())
    await asked.wait()
    looking.cancel()
    print("ends", flush=True)

asyncio.run(main())
"""


def test_a_silent_registry_does_not_delay_the_end_of_the_process(tmp_path: Path) -> None:
    """The look is not waited for: a stop would else take as long as the registry's silence is borne, and be a kill."""
    root = tmp_path / "1.root.json"
    root.write_bytes(SignedRepository().anchor)
    process = subprocess.Popen(
        [sys.executable, "-c", _SILENT, str(tmp_path / "metadata"), str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ends\n"
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.communicate()
