"""S and M on BentoML, S with its adaptive batching. Runs in BentoML's own environment, next to `model.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bentoml
import numpy as np
from model import Model, arguments

_MODELS, _UNBATCHED = "BENCH_MODELS", "BENCH_UNBATCHED"
_BATCHED = _UNBATCHED not in os.environ


@bentoml.service(name="bench", workers=1, traffic={"timeout": 60})
class Bench:
    """One address for each model."""

    def __init__(self):
        models = Path(os.environ[_MODELS])
        self._s, self._m = Model(models / "s.onnx"), Model(models / "m.onnx")

    @bentoml.api(batchable=_BATCHED, max_batch_size=32, max_latency_ms=1000)
    def s(self, x: np.ndarray) -> np.ndarray:
        return self._s(x.astype(np.float32))

    @bentoml.api
    def m(self, x: np.ndarray) -> np.ndarray:
        return self._m(x.astype(np.float32))


if __name__ == "__main__":
    asked = arguments()
    os.environ[_MODELS] = str(asked.models)
    if asked.unbatched:
        os.environ[_UNBATCHED] = "1"
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    os.chdir(Path(__file__).parent)
    command = Path(sys.executable).with_name("bentoml")
    os.execv(command, [str(command), "serve", "serve_bentoml:Bench", "--host", "127.0.0.1", "--port", str(asked.port)])
