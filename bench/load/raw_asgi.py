"""The least that a V2 server on uvicorn can do: no checks, no routing, no limits, no batches; the model runs inline.

The ratio of a gateway's rate to this one is the gateway's cost, with the same client, model and server (uvloop,
httptools) in the same run. Batches can make the gateway faster.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson
import uvicorn

_JSON = [(b"content-type", b"application/json")]
_BINARY = [(b"content-type", b"application/octet-stream")]
_LENGTH = b"inference-header-content-length"


class RawAsgi:
    """Answers every POST with what the model makes of it: a V2 body of one FP32 input, binary or JSON.

    Args:
        path: the ONNX model: one input with rows first, one output.
        threads: number of threads that run the model, each run on one core; 0 runs it on the event loop.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._outputs = [self._session.get_outputs()[0].name]
        self._threads = ThreadPoolExecutor(threads) if threads else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        body = message["body"]
        if message["more_body"]:
            parts = [body]
            while message["more_body"]:
                message = await receive()
                parts.append(message["body"])
            body = b"".join(parts)
        json_bytes = next((int(value) for name, value in scope["headers"] if name == _LENGTH), None)
        if json_bytes is None:
            tensor = orjson.loads(body)["inputs"][0]
            rows = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        else:
            tensor = orjson.loads(body[:json_bytes])["inputs"][0]
            rows = np.frombuffer(body, np.float32, offset=json_bytes).reshape(tensor["shape"])
        output = await self._run(rows)
        entry: dict[str, Any] = {"name": self._outputs[0], "datatype": "FP32", "shape": output.shape}
        if json_bytes is None:
            entry["data"] = output.reshape(-1)
            reply, headers = orjson.dumps({"outputs": [entry]}, option=orjson.OPT_SERIALIZE_NUMPY), _JSON
        else:
            entry["parameters"] = {"binary_data_size": output.nbytes}
            head = orjson.dumps({"outputs": [entry]})
            reply = head + output.tobytes()
            headers = [*_BINARY, (_LENGTH, str(len(head)).encode())]
        headers = [*headers, (b"content-length", str(len(reply)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    async def _run(self, rows: Any) -> Any:
        if self._threads is None:
            return self._session.run(self._outputs, {self._input: rows})[0]
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, self._session.run, self._outputs, {self._input: rows}
        )
        return (await running)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: on the event loop")
    arguments = parser.parse_args()
    # By its protocol asyncio knows a TCP socket, and sets TCP_NODELAY on what it accepts.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", arguments.port))
    config = uvicorn.Config(
        RawAsgi(arguments.model, arguments.threads),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    print(orjson.dumps({"url": f"http://127.0.0.1:{bound.getsockname()[1]}"}).decode(), flush=True)
    uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main()
