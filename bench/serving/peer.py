"""The peers: what each is asked in the best form that it speaks, and in JSON, and how its server is started."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.serving.bodies import Body, Row, numbers
from bench.serving.client import Ask, checked, v2
from bench.serving.models import Kind, rows
from bench.serving.processes import Cores, Server, StartError, free_port, started

_CHECKOUT = Path(__file__).parents[2]
_SERVERS = Path(__file__).parent / "peers"
_PATIENCE_S = 90.0
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


class Peer(NamedTuple):
    """One of them.

    Attributes:
        name: as its users write it; a variant of one comes after a comma.
        key: its environment is .venv-peers/KEY, its server serving/peers/serve_KEY.py.
        package: its version is reported.
        forms: by "binary" and "JSON", what asks it for a model; it has no binary form where that is absent.
        note: what a reader has to know of the comparison.
        options: of its server here.
    """

    name: str
    key: str
    package: str
    forms: Mapping[str, Callable[[Kind], Ask]]
    note: str
    options: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Whose variant it is."""
        return self.name.partition(",")[0]

    @property
    def python(self) -> Path:
        return _CHECKOUT / ".venv-peers" / self.key / "bin" / "python"


def _v2(form: str) -> Callable[[Kind], Ask]:
    return lambda kind: v2(form, kind, kind.name)


def _json(name: str, *, whole: bool, answer: Callable[[bytes, Kind], Row]) -> Callable[[Kind], Ask]:
    """JSON of the peer's own: a row, or with `whole` rows, by this name."""

    def ask(kind: Kind) -> Ask:
        given = rows(kind)
        content = json.dumps({name: numbers(given if whole else given[0])}, separators=(",", ":")).encode()
        body = Body({"Content-Type": "application/json"}, content)
        return Ask(f"/{kind.name}", body, lambda _, told: answer(told, kind))

    return ask


def _row_of(key: str) -> Callable[[bytes, Kind], Row]:
    return lambda told, kind: np.array(json.loads(told)[key], np.float32).reshape(1, kind.classes)


def _bytes(kind: Kind) -> Ask:
    """Raw FP32 both ways."""
    body = Body({"Content-Type": "application/octet-stream"}, rows(kind).tobytes())
    return Ask(f"/{kind.name}", body, lambda _, told: np.frombuffer(told, np.float32).reshape(1, kind.classes))


_BENTO = _json("x", whole=True, answer=lambda told, kind: np.array(json.loads(told), np.float32).reshape(1, -1))

PEERS = (
    Peer(
        "pytriton",
        "pytriton",
        "nvidia-pytriton",
        {"binary": _v2("binary"), "JSON": _v2("JSON")},
        "Triton's HTTP server with Python models, dynamic batching without a delay",
    ),
    Peer(
        "MLServer",
        "mlserver",
        "mlserver",
        {"JSON": _v2("JSON")},
        "no binary tensors over REST; adaptive batching of 32 rows within 2 ms, no worker processes",
    ),
    Peer(
        "MLServer, unbatched",
        "mlserver",
        "mlserver",
        {"JSON": _v2("JSON")},
        "the same without adaptive batching, whose wait a lone request pays",
        ("--unbatched",),
    ),
    Peer(
        "LitServe",
        "litserve",
        "litserve",
        {"JSON": _json("input", whole=False, answer=_row_of("output"))},
        "JSON is its form; batches of 32 without a wait, fast_queue",
    ),
    Peer("BentoML", "bentoml", "bentoml", {"JSON": _BENTO}, "JSON is its form for arrays; adaptive batching of S"),
    Peer(
        "BentoML, unbatched",
        "bentoml",
        "bentoml",
        {"JSON": _BENTO},
        "the same without adaptive batching, whose wait a lone request pays",
        ("--unbatched",),
    ),
    Peer(
        "Ray Serve",
        "rayserve",
        "ray",
        {"binary": _bytes, "JSON": _json("x", whole=True, answer=_row_of("output"))},
        "binary is raw FP32 as the body; serve.batch of 32 without a wait; all of Ray's processes on the one core",
    ),
)


@contextlib.contextmanager
def running(peer: Peer, folder: Path, right: Row, first: Kind, on: Cores) -> Iterator[Server]:
    """Its server, while the context is open.

    Args:
        peer: which.
        folder: has s.onnx and m.onnx, and takes the log.
        right: what the model says to what is asked of `first`.
        first: the model that it has to answer for.
        on: the cores it may use.

    Raises:
        StartError: its environment is not built, or it does not answer.
    """
    if not peer.python.exists():
        raise StartError(f"has no environment: make .venv-peers/{peer.key}/stamp")
    port = free_port()
    ask = next(iter(peer.forms.values()))(first)
    with started(
        [peer.python, _SERVERS / f"serve_{peer.key}.py", "--port", str(port), "--models", str(folder), *peer.options],
        port=port,
        on=on,
        log=folder / f"{peer.key}.log",
        answers=lambda asked: checked(asked, ask, {}, right),
        patience_s=_PATIENCE_S,
        environ={name: os.environ[name] for name in _KEPT if name in os.environ} | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
    ) as server:
        yield server
