"""S and M on Ray Serve, S with `serve.batch`. Runs in Ray's own environment, next to `model.py`."""

from __future__ import annotations

import json
import signal
import tempfile

import numpy as np
import ray
from model import Model, arguments
from ray import serve


@serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 0.1})
class Bench:
    """One model: raw FP32 in and out where the body says so, JSON otherwise."""

    def __init__(self, path, shape, batch):
        self._model, self._shape = Model(path), shape
        self._run.set_max_batch_size(batch)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)
    async def _run(self, rows):
        return list(self._model(np.concatenate(rows)))

    async def __call__(self, request):
        body = await request.body()
        if request.headers["content-type"] == "application/octet-stream":
            found = await self._run(np.frombuffer(body, np.float32).reshape(self._shape))
            return serve_bytes(found.tobytes())
        found = await self._run(np.asarray(json.loads(body)["x"], np.float32).reshape(self._shape))
        return {"output": found.tolist()}


def serve_bytes(content):
    """An answer that is not JSON."""
    from starlette.responses import Response

    return Response(content, media_type="application/octet-stream")


if __name__ == "__main__":
    asked = arguments()
    with tempfile.TemporaryDirectory(
        prefix="ray-", ignore_cleanup_errors=True
    ) as folder:  # sockets' paths must be short
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            runtime_env={"working_dir": None},
        )
        serve.start(http_options={"host": "127.0.0.1", "port": asked.port})
        for name, shape in {"s": (1, 64), "m": (1, 3, 224, 224)}.items():
            app = Bench.bind(str(asked.models / f"{name}.onnx"), shape, asked.batch[name])
            serve.run(app, name=name, route_prefix=f"/{name}")
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        serve.shutdown()
        ray.shutdown()
