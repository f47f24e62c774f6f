"""The model as every peer runs it: ONNX Runtime on one thread, for they all have one core."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import onnxruntime


class Model:
    """Rows in, probabilities out."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, rows):
        return self._session.run(None, {"x": rows})[0]


def arguments():
    """Where to listen, and which models; `batch` has the most rows of each that run at once: M gains nothing by it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--models", type=Path, required=True, help="folder with s.onnx and m.onnx")
    parser.add_argument("--unbatched", action="store_true")
    found = parser.parse_args()
    found.batch = {"s": 1 if found.unbatched else 32, "m": 1}
    return found


def free_port():
    """For the listeners that are not measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
