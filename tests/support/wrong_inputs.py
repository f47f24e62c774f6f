"""Runs wrong inputs, commands and requests, against real programs, and returns the message that each gets."""

import asyncio
import io
import json
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import grpc
import httpx
import numpy as np
from PIL import Image
from support.agent import DIGITS, edge_settings, serving_agent
from support.audio import clip, tone
from support.grpc_calls import calling, refusal
from support.images import encode
from support.keys import create_key, revoke_key
from support.task_bundles import write_tasks
from support.tls_site import TlsSite, tls_site

from firstline.cli.app import run as run_firstline
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.protocol.grpc.service import REQUEST_ID
from firstline_edge.__main__ import main as run_agent
from firstline_gateway.__main__ import main as run_gateway
from firstline_gateway.identity import ca

_T = TypeVar("_T")
_PROGRAMS: Mapping[str, Callable[[], int]] = {
    "firstline": run_firstline,
    "edge-agent": run_agent,
    "firstline-gateway": run_gateway,
}
_REQUEST_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
FLEET = {"FIRSTLINE_GATEWAY": "https://gateway:8080", "FIRSTLINE_KEY_FILE": "ops.key", "FIRSTLINE_CA": "ca.pem"}
GATEWAY, AGENT = "gateway:8080", "127.0.0.1:8070"


@dataclass(frozen=True)
class Command:
    """A command that fails.

    Attributes:
        wrong: what is wrong, in words.
        line: as typed, in a folder with the files of `make_files`.
        files: written before, as text by name.
        code: exit code.
        environ: variables that are set.
        given: shown instead of the files.
    """

    wrong: str
    line: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 2
    environ: Mapping[str, str] = field(default_factory=dict)
    given: str = ""

    @property
    def shown(self) -> str:
        """The input as a reader sees it."""
        texts = (f"{name}: {text.strip()}\n" for name, text in self.files.items() if isinstance(text, str) and text)
        variables = "" if self.environ == FLEET else "".join(f"{k}={shlex.quote(v)} " for k, v in self.environ.items())
        return f"{self.given or ''.join(texts)}$ {variables}{self.line}"


@dataclass(frozen=True)
class Request:
    """A request that is refused.

    Attributes:
        wrong: what is wrong, in words.
        tiers: that get the request: "agent", "gateway".
        line: method and path.
        body: JSON, text or bytes.
        status: HTTP status.
        key: name of the caller's key; "" for none.
        headers: of the request.
    """

    wrong: str
    tiers: tuple[str, ...]
    line: str
    body: object = b""
    status: int = 400
    key: str = "ops"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        if isinstance(self.body, bytes | str):
            return self.body.encode() if isinstance(self.body, str) else self.body
        return json.dumps(self.body).encode()

    @property
    def shown(self) -> str:
        """The input as a reader sees it."""
        headers = "".join(f"\n{name}: {value}" for name, value in self.headers.items())
        text = self.content.decode(errors="replace")
        body = text if text.isprintable() else f"({len(self.content)} bytes)"
        return f"{self.line}{headers}\n{body}".strip()


@dataclass(frozen=True)
class Call:
    """A call over gRPC that the gateway refuses.

    Attributes:
        wrong: what is wrong, in words.
        line: the method, and the fields of its message that differ.
        message: of the call.
        key: name of the caller's key; "" for none.
    """

    wrong: str
    line: str
    message: Any
    key: str = "ops"

    @property
    def shown(self) -> str:
        """The input as a reader sees it."""
        return f"gRPC {self.line}"


Case = Command | Request | Call


class Site:
    """Both tiers in threads of this process, and the folder in which commands run."""

    def __init__(self, folder: Path, gateway: TlsSite, agent_url: str, grpc_port: int, keys: Mapping[str, str]) -> None:
        self.folder = folder
        self._grpc_port = grpc_port
        self._urls = {"gateway": gateway.url, "agent": agent_url}
        self._shown = {gateway.url.partition("//")[2]: GATEWAY, agent_url.partition("//")[2]: AGENT}
        self._keys = keys
        verify = gateway.operator._transport._pool._ssl_context
        self._http = httpx.Client(verify=verify, timeout=20)

    def message(self, case: Case) -> str:
        """Returns the message that an input gets, after checks of its form."""
        try:
            return self._checked(case)
        except Exception as error:
            error.add_note(f"The wrong input is: {case.wrong}")
            raise

    def _checked(self, case: Case) -> str:
        if isinstance(case, Command):
            return self._command(case)
        if isinstance(case, Call):
            return asyncio.run(self._called(case))
        messages = {tier: self._request(case, tier) for tier in case.tiers}
        if len(set(messages.values())) == 1:
            return messages[case.tiers[0]]
        return "\n".join(f"{message} ({tier})" for tier, message in messages.items())

    def _command(self, case: Command) -> str:
        for name, text in case.files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        try:
            return self._output(case)
        finally:
            for name in case.files:
                (self.folder / name).unlink()

    def _output(self, case: Command) -> str:
        program, *arguments = shlex.split(self._real(case.line))
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()  # JSON is written as bytes
        environ = {name: self._real(value) for name, value in case.environ.items()}
        with (
            patch.dict(os.environ, {"HOME": str(self.folder), "COLUMNS": "200"} | environ),
            patch.object(sys, "argv", [program, *arguments]),
            patch.object(sys, "stdin", io.StringIO()),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                code = _PROGRAMS[program]()
            except SystemExit as end:
                code = int(end.code or 0)
        out.seek(0)
        printed, message = out.read(), err.getvalue()
        assert code == case.code, (code, printed, message)
        assert "Traceback" not in message, message
        assert not printed or ("json" in arguments and json.loads(printed)), printed
        return self._plain(message.strip())

    async def _called(self, case: Call) -> str:
        credentials = grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes())
        async with calling(self._grpc_port, credentials=credentials, key=self._keys.get(case.key, "")) as call:
            status, sentence, metadata = await refusal(call(case.line.split()[0], case.message))
        assert _REQUEST_ID.fullmatch(metadata[REQUEST_ID]), metadata
        return self._plain(f"{status}: {sentence}")

    def _request(self, case: Request, tier: str) -> str:
        method, _, path = case.line.partition(" ")
        headers = dict(case.headers)
        if case.key:
            headers.setdefault("Authorization", f"Bearer {self._keys[case.key]}")
        reply = self._http.request(method, self._urls[tier] + path, content=case.content, headers=headers)
        assert reply.status_code == case.status, (reply.status_code, reply.text)
        document = reply.json()
        assert _REQUEST_ID.fullmatch(document["request_id"]), document
        return self._plain(f"{reply.status_code} {document['code']}: {document.get('error') or document['detail']}")

    def _real(self, text: str) -> str:
        for real, shown in self._shown.items():
            text = text.replace(shown, real)
        return text

    def _plain(self, text: str) -> str:
        """Returns a message without what differs from run to run."""
        for real, shown in (*self._shown.items(), (f"{self.folder}/", ""), (str(self.folder), ".")):
            text = text.replace(real, shown)
        return _REQUEST_ID.sub("01a2019f-6dd1-704a-a261-d1635d589c27", text)

    def close(self) -> None:
        self._http.close()


@contextmanager
def wrong_site(folder: Path) -> Iterator[Site]:
    """Starts both tiers, makes the files, and changes into their folder."""
    work = folder / "work"
    work.mkdir()
    before = Path.cwd()
    os.chdir(work)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    with ExitStack() as stack:
        stack.callback(os.chdir, before)
        stack.callback(loop.close)
        stack.callback(thread.join, 10)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        running = AsyncExitStack()
        stack.callback(lambda: call(running.aclose()))
        site = call(_opened(running, folder, work))
        stack.callback(site.close)
        yield site


async def _opened(running: AsyncExitStack, folder: Path, work: Path) -> Site:
    make_files(work)
    gateway = await running.enter_async_context(
        tls_site(
            folder / "gateway",
            models__directory=str(work / "models"),
            registry__blobs=str(folder / "blobs"),
            grpc__enabled=True,
            grpc__port=0,
        )
    )
    rpc = gateway.gateway.grpc_server()
    await rpc.start()
    running.push_async_callback(rpc.stop, 1)
    store = gateway.gateway.settings.store
    keys = {name: create_key(store, name, kind) for name, kind in _KEYS.items()}
    keys["retired"] = create_key(store, "retired")
    revoke_key(store, "retired")
    for name, key in keys.items():
        (work / f"{name}.key").write_text(key)
    (work / "ca.pem").write_text(gateway.gateway.identity.folder.open().pem)
    token = await gateway.token_file("press-9")
    (work / "press-9.token").write_text(token.read_text())
    (work / "agent.tokens").write_text("ops:" + keys["ops"] + "\n")
    settings = edge_settings(
        folder / "agent", models__directories=[str(work / "models")], api__token_file=str(work / "agent.tokens")
    )
    _, url = await running.enter_async_context(serving_agent(settings))
    return Site(work, gateway, url, rpc.port, keys)


_KEYS = {"ops": "operator", "shop": "application", "cam": "device"}


def make_files(folder: Path) -> None:
    """Writes the files that wrong inputs use: right ones, and damaged ones."""
    write_tasks(folder / "models")
    shutil.copytree(DIGITS, folder / "models" / "digits")
    shutil.copytree(DIGITS.parent / "heldout", folder / "heldout")
    for file in (DIGITS.parent / "artefacts").glob("*"):
        shutil.copy(file, folder)
    shutil.copy(DIGITS.parent / "labels.txt", folder)
    shutil.copy(folder / "edge.onnx", folder / "net.onnx")
    shutil.copy(folder / "full.onnx", folder / "resnet.onnx")
    scan = encode(np.full((8, 8), 100, np.uint8))
    (folder / "scan.png").write_bytes(scan)
    (folder / "cut.png").write_bytes(scan[:40])
    Image.new("L", (8, 8)).save(folder / "scan.gif")
    (folder / "empty").write_bytes(b"")
    (folder / "notes.txt").write_text("Not a model.\n")
    (folder / "latin1.txt").write_bytes("Schl\xfcssel\n".encode("latin-1"))
    shutil.copy(folder / "notes.txt", folder / "notes.onnx")
    (folder / "cut.onnx").write_bytes((folder / "edge.onnx").read_bytes()[:2000])
    (folder / "tone.wav").write_bytes(clip(tone(440, 8000)))
    (folder / "loop").symlink_to("loop")
    (folder / "other-ca.pem").write_text(ca.create_authority(ca.new_key(), SYSTEM_CLOCK.wall_s()).pem)
