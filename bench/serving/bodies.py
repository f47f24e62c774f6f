"""The bodies that servers are asked with, and what wrk needs to send them: V2 in JSON and in binary, seeded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.serving.models import INPUT, OUTPUT

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Row = np.ndarray[Any, np.dtype[np.float32]]


class Body(NamedTuple):
    """One request's content, and the headers that it needs."""

    headers: dict[str, str]
    content: bytes


def v2_binary(row: Row) -> Body:
    """V2 with the binary tensor extension, both ways."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": INPUT,
                    "shape": list(row.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": row.nbytes},
                }
            ],
            "outputs": [{"name": OUTPUT, "parameters": {"binary_data": True}}],
        },
        separators=(",", ":"),
    ).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Body(headers, head + row.tobytes())


def v2_json(row: Row) -> Body:
    """V2 as everybody speaks it, with the shortest decimals: `0.123`, not what FP32 makes of it in FP64."""
    tensor = {
        "name": INPUT,
        "shape": list(row.shape),
        "datatype": "FP32",
        "data": row.ravel().astype(np.float64).round(3).tolist(),
    }
    return Body({"Content-Type": "application/json"}, json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode())


def v2_answer(headers: dict[str, str], content: bytes) -> Row:
    """The answer's output, whichever form it came in; `headers` by lowered names."""
    length = int(headers.get("inference-header-content-length", len(content)))
    answer = json.loads(content[:length])
    (output,) = (output for output in answer["outputs"] if output["name"] == OUTPUT)
    shape = output["shape"]
    if "data" in output:
        return np.array(output["data"], np.float32).reshape(shape)
    return np.frombuffer(content[length:], np.float32).reshape(shape)


def plan(folder: Path, name: str, path: str, body: Body, headers: dict[str, str], *, requests: int = 0) -> Path:
    """A script for wrk that posts the body to the path, and prints the outcome as a line of JSON.

    With `requests`, it posts nothing after that number of answers, but lasts as long.
    """
    content = folder / f"{name}.body"
    content.write_bytes(body.content)
    lines = [
        'wrk.method = "POST"',
        f'local file = io.open("{content}", "rb")',
        'wrk.body = file:read("*a")',
        "file:close()",
        *(f'wrk.headers["{key}"] = "{value}"' for key, value in (body.headers | headers).items()),
        f'wrk.path = "{path}"',
        *((f"local left = {requests}", _STOP) if requests else ()),
        _DONE,
    ]
    script = folder / f"{name}.lua"
    script.write_text("\n".join(lines))
    return script


_STOP = """function response()
  left = left - 1
  if left == 0 then wrk.thread:stop() end
end"""

_DONE = """function done(summary, latency, requests)
  io.write(string.format(
    '\\n{"requests":%d,"microseconds":%d,"bad_status":%d,"broken":%d,"late":%d,"p50_us":%d,"p99_us":%d}\\n',
    summary.requests, summary.duration, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write, summary.errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end"""
