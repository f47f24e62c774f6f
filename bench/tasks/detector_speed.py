"""The speed of a 352x352 detector in process, next to a bare loop around ONNX Runtime."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from bench.figures import Figure, at_least, plain
from bench.tasks.detection import images, recipe_bundle
from firstline_core.bundle.loading import load_model
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array

_MODEL = "fastestdet"
_SIDE, _CELLS = 352, 22
_SCORE, _IOU = 0.1, 0.45


def figures(data: Path) -> list[Figure]:
    """Returns the time of an image in both loops, which take turns, and their ratio."""
    contents = [file.read_bytes() for file in images(data)]
    with TemporaryDirectory() as folder:
        bundle = recipe_bundle(_MODEL, data, Path(folder))
        with closing(load_model(bundle, bundle.manifest.edge[0], RuntimeOptions(threads=1))) as loaded:

            def ours(content: bytes) -> object:
                return loaded.predict({"image": np.array([content], object)})

            def bare(content: bytes) -> object:
                with Image.open(io.BytesIO(content)) as image:
                    pixels = np.asarray(image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))
                feed = np.ascontiguousarray(pixels[None, :, :, ::-1].transpose(0, 3, 1, 2), np.float32)
                feed /= 255
                return _boxes(loaded.runtime.run({loaded.inputs[0].port.name: feed})["758"][0])

            turns = [[_timed(loop, content) for loop in (bare, ours)] for _ in range(3) for content in contents]
    of_bare, of_ours = (np.median(np.array(turns), axis=0) * 1000).tolist()
    return [
        plain(f"{_MODEL}: an image in a bare loop", of_bare, "ms", 2),
        plain(f"{_MODEL}: an image with declared steps", of_ours, "ms", 2),
        at_least(f"{_MODEL}: images a second, relative to the bare loop", of_bare / of_ours, 0.9),
    ]


def _timed(loop: Callable[[bytes], object], content: bytes) -> float:
    started_s = time.perf_counter()
    loop(content)
    return time.perf_counter() - started_s


def _boxes(values: Array) -> Any:
    """Decodes FastestDet's output and suppresses overlaps of a class, as a script would."""
    scores = values[0] ** 0.6 * values[5:].max(axis=0) ** 0.4
    rows, columns = np.nonzero(scores >= _SCORE)
    candidates = values[:, rows, columns]
    center_x, center_y = (columns + np.tanh(candidates[1])) / _CELLS, (rows + np.tanh(candidates[2])) / _CELLS
    width, height = 1 / (1 + np.exp(-candidates[3])), 1 / (1 + np.exp(-candidates[4]))
    classes, scores = candidates[5:].argmax(axis=0), scores[rows, columns]
    boxes = np.stack((center_x - width / 2, center_y - height / 2, center_x + width / 2, center_y + height / 2), axis=1)
    left, top, right, bottom = (boxes + 2 * classes[:, None]).T  # boxes of different classes do not overlap
    areas = (right - left) * (bottom - top)
    order, found = scores.argsort()[::-1], []
    while order.size:
        best, order = order[0], order[1:]
        found.append(best)
        across = np.minimum(right[best], right[order]) - np.maximum(left[best], left[order])
        down = np.minimum(bottom[best], bottom[order]) - np.maximum(top[best], top[order])
        shared = np.maximum(across, 0) * np.maximum(down, 0)
        order = order[shared <= _IOU * (areas[best] + areas[order] - shared)]
    return boxes[found], scores[found], classes[found]
