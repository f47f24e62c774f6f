"""The peers: the forms that each speaks, and how its server is started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.serving.bodies import Row
from bench.serving.client import checked, v2
from bench.serving.models import Kind
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
        forms: of V2 that it speaks over REST, the quickest first.
        note: what a reader has to know of the comparison.
        options: of its server here.
    """

    name: str
    key: str
    package: str
    forms: tuple[str, ...]
    note: str
    options: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """Whose variant it is."""
        return self.name.partition(",")[0]

    @property
    def python(self) -> Path:
        return _CHECKOUT / ".venv-peers" / self.key / "bin" / "python"


PEERS = (
    Peer(
        "pytriton",
        "pytriton",
        "nvidia-pytriton",
        ("binary", "JSON"),
        "Triton's HTTP server with Python models, dynamic batching without a delay",
    ),
    Peer(
        "MLServer",
        "mlserver",
        "mlserver",
        ("JSON",),
        "no binary tensors over REST; adaptive batching of 32 rows within 2 ms, no worker processes",
    ),
    Peer(
        "MLServer, unbatched",
        "mlserver",
        "mlserver",
        ("JSON",),
        "the same without adaptive batching, whose wait a lone request pays",
        ("--unbatched",),
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
    ask = v2(peer.forms[0], first)
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
