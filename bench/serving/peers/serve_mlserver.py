"""S and M on MLServer: a runtime as its documentation shows one, S with adaptive batching, no worker processes.

Runs in MLServer's own environment, next to `model.py`; `mlserver start` reads the settings written here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from model import Model, arguments, free_port


class Bench(MLModel):
    """One model."""

    async def load(self):
        self._model = Model(self.settings.parameters.uri)
        return True

    async def predict(self, payload):
        rows = NumpyCodec.decode_input(payload.inputs[0])
        found = self._model(rows.astype("float32", copy=False))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", found)])


if __name__ == "__main__":
    asked = arguments()
    folder = Path(tempfile.mkdtemp(prefix="mlserver-", dir=asked.models))
    settings = {
        "host": "127.0.0.1",
        "http_port": asked.port,
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        "parallel_workers": 0,
        "debug": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, most in asked.batch.items():
        (folder / name).mkdir()
        model = {
            "name": name,
            "implementation": "serve_mlserver.Bench",
            "parameters": {"uri": str((asked.models / f"{name}.onnx").resolve())},
        }
        if most > 1:
            model |= {"max_batch_size": most, "max_batch_time": 0.002}
        (folder / name / "model-settings.json").write_text(json.dumps(model))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.resolve())
    os.chdir(folder)
    command = Path(sys.executable).with_name("mlserver")
    os.execv(command, [str(command), "start", str(folder)])
