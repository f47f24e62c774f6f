"""S and M on pytriton, which is Triton and Python models; runs in its own environment, next to `model.py`."""

from __future__ import annotations

import os
import sysconfig

import numpy as np
from model import Model, arguments, free_port
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

SHAPES = {"s": ((64,), (10,)), "m": ((3, 224, 224), (100,))}


def bind(triton, name, model, most):
    """One model, in batches of what waits."""

    @batch
    def infer(x):
        return [model(x)]

    triton.bind(
        model_name=name,
        infer_func=infer,
        inputs=[Tensor(name="x", dtype=np.float32, shape=SHAPES[name][0])],
        outputs=[Tensor(name="probabilities", dtype=np.float32, shape=SHAPES[name][1])],
        config=ModelConfig(max_batch_size=most, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
        strict=False,
    )


if __name__ == "__main__":
    asked = arguments()
    # Its stub would also load the system's libpython, which may be of another release than this interpreter's.
    libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    config = TritonConfig(
        http_address="127.0.0.1", http_port=asked.port, grpc_port=free_port(), metrics_port=free_port()
    )
    with Triton(config=config) as triton:
        for name, most in asked.batch.items():
            bind(triton, name, Model(asked.models / f"{name}.onnx"), most)
        triton.serve()
