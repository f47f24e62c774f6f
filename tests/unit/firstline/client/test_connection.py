"""Connections of the clients: one's own in each process and event loop, and none that carried a wrong answer."""

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from firstline import AsyncClient, Client
from firstline_core.errors import ProtocolError
from firstline_core.protocol import http
from firstline_core.protocol.oip import decode_request, encode_response
from firstline_core.types import InferRequest, InferResponse

Change = Callable[[InferResponse], InferResponse]


class Doubler(ThreadingHTTPServer):
    """Answers each V2 request with its own inputs, doubled.

    Attributes:
        change: made to each answer.
        ports: by client port, the numbers that arrived over the connection.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.change: Change = lambda answer: answer
        self.ports: dict[int, list[float]] = defaultdict(list)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Doubler

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = decode_request("m", body, int(self.headers[http.HEADER_LENGTH]))
        self.server.ports[self.client_address[1]].append(float(request.inputs[0].array[0]))
        encoded = encode_response(request, self.server.change(_doubled(request)))
        self.send_response(200)
        for name, value in {**http.headers_for(encoded), "Content-Length": str(len(encoded.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(encoded.body)

    def log_message(self, *_: object) -> None:
        pass


def _doubled(request: InferRequest) -> InferResponse:
    (tensor,) = request.inputs
    return InferResponse("m", "1", (type(tensor)("y", tensor.array * 2),), id=request.id)


@pytest.fixture
def server() -> Iterator[Doubler]:
    with Doubler() as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


_FORKING = """
import json, os, sys
import numpy as np
from firstline import Client

client = Client(sys.argv[1])
client.infer("m", {"x": np.zeros(1)})
children = []
for worker in range(1, 4):
    reading, writing = os.pipe()
    if os.fork() == 0:
        found = [client.infer("m", {"x": np.array([worker * 100.0 + call])}).output("y").item() for call in range(3)]
        client.close()
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    children.append(reading)
answers = [json.loads(os.read(reading, 10_000)) for reading in children]
client.infer("m", {"x": np.zeros(1)})
for _ in children:
    os.wait()
client.close()
print(json.dumps(answers))
"""


def test_forked_processes_use_connections_of_their_own(server: Doubler) -> None:
    ran = subprocess.run([sys.executable, "-c", _FORKING, server.url], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [[2 * (worker * 100.0 + call) for call in range(3)] for worker in (1, 2, 3)]
    over = sorted(sorted({number // 100 for number in numbers}) for numbers in server.ports.values())
    assert over == [[0], [1], [2], [3]]  # the parent's is still open when it asks again


# What Windows and an installation without extras lack.
_ELSEWHERE = """
import asyncio, os, signal, socket, sys
import httpx, msgspec, numpy as np, orjson  # know themselves where they run

POSIX = "fcntl grp pty pwd resource syslog termios tty".split()
EXTRAS = "aiohttp cryptography diskcache fastapi httptools onnxruntime paho PIL rich structlog tuf typer".split()
for name in [*POSIX, *EXTRAS]:
    sys.modules[name] = None
for name in "chown fchmod fork geteuid getuid killpg pread register_at_fork sched_getaffinity statvfs".split():
    delattr(os, name)
for name in "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK".split():
    delattr(os, name)
for name in "TCP_KEEPIDLE TCP_USER_TIMEOUT".split():
    delattr(socket, name)
for name in "SIGHUP SIGKILL".split():
    delattr(signal, name)

from firstline import AsyncClient, Client

async def ask():
    async with AsyncClient(sys.argv[1]) as client:
        return await client.infer("m", {"x": np.array([2.0])})

with Client(sys.argv[1]) as client:
    answers = [client.infer("m", {"x": np.array([1.0])}), asyncio.run(ask())]
print([answer.output("y").item() for answer in answers])
"""


def test_clients_need_neither_posix_nor_an_extra(server: Doubler) -> None:
    """In a process of its own, because imported modules would hide what is missing."""
    ran = subprocess.run([sys.executable, "-c", _ELSEWHERE, server.url], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("[2.0, 4.0]\n", "")


def test_each_event_loop_uses_connections_of_its_own(server: Doubler) -> None:
    client = AsyncClient(server.url)

    async def ask(number: float) -> float:
        return float((await client.infer("m", {"x": np.array([number])})).output("y").item())

    with asyncio.Runner() as one, asyncio.Runner() as other:
        assert [runner.run(ask(number)) for number, runner in enumerate((one, other, one, other))] == [0, 2, 4, 6]
        one.run(client.close())
        other.run(client.close())
    assert sorted(server.ports.values()) == [[0, 2], [1, 3]]

    async def once() -> float:
        async with client:
            return await ask(4)

    assert [asyncio.run(once()) for _ in range(2)] == [8, 8]  # the loops before have ended
    assert len(client._clients) == 1


def _another_id(answer: InferResponse) -> InferResponse:
    return type(answer)(answer.model, answer.version, answer.outputs, id="another")


def _another_row(answer: InferResponse) -> InferResponse:
    outputs = tuple(type(tensor)(tensor.name, np.repeat(tensor.array, 2, axis=0)) for tensor in answer.outputs)
    return type(answer)(answer.model, answer.version, outputs, id=answer.id)


@pytest.mark.parametrize("client_id", ["", "mine"])
@pytest.mark.parametrize(
    ("change", "error"),
    [(_another_id, "request 'another', not to"), (_another_row, r"the shape \[2\], but the request has 1 row")],
)
async def test_foreign_answer_ends_its_connection(server: Doubler, change: Change, error: str, client_id: str) -> None:
    inputs = {"x": np.ones(1)}
    with Client(server.url) as client:
        assert client.infer("m", inputs, id=client_id).id == client_id
        server.change = change
        with pytest.raises(ProtocolError, match=error):
            client.infer("m", inputs, id=client_id)
        server.change = lambda answer: answer
        assert client.infer("m", inputs, id=client_id).id == client_id
    assert [len(numbers) for numbers in server.ports.values()] == [2, 1]
    async with AsyncClient(server.url) as client:
        server.change = change
        with pytest.raises(ProtocolError, match=error):
            await client.infer("m", inputs, id=client_id)
        server.change = lambda answer: answer
        assert (await client.infer("m", inputs, id=client_id)).id == client_id
    assert [len(numbers) for numbers in server.ports.values()] == [2, 1, 1, 1]
