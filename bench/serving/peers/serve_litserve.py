"""S and M on LitServe, batched as its documentation shows; runs in its own environment, next to `model.py`."""

from __future__ import annotations

import litserve
import numpy as np
from model import Model, arguments


class Api(litserve.LitAPI):
    """Decode, batch, predict, unbatch, encode."""

    def __init__(self, path, **options):
        super().__init__(**options)
        self._path = path

    def setup(self, device):
        self._model = Model(self._path)

    def decode_request(self, request):
        row = np.asarray(request["input"], np.float32)
        return row if self.max_batch_size > 1 else row[None]  # what is not batched is not stacked either

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, rows):
        return self._model(rows)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"output": output.ravel().tolist()}


if __name__ == "__main__":
    asked = arguments()
    apis = [
        Api(asked.models / f"{name}.onnx", api_path=f"/{name}", max_batch_size=asked.batch[name], batch_timeout=0.0)
        for name in asked.batch
    ]
    # `fast_queue` is what it recommends for many requests a second.
    server = litserve.LitServer(apis, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=asked.port, num_api_servers=1, generate_client_file=False, log_level="warning")
