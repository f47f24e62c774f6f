"""What Microsoft's Olive makes of the models that `compress.py` has candidates of: techniques beside ours.

Olive runs by its own command line, in an environment of its own (`make olive`), with its own defaults; `per channel`
is its static pass with the settings that ours has. It reads the calibration rows from files, as its manual describes.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from firstline.workbench.compress.making import Make
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU
from firstline_core.types import Array

PASSES: Mapping[str, Mapping[str, object]] = {
    "olive-static-int8": {"type": "OnnxStaticQuantization"},
    "olive-static-int8-per-channel": {
        "type": "OnnxStaticQuantization",
        "per_channel": True,
        "activation_type": "uint8",
    },
    "olive-dynamic-int8": {"type": "OnnxDynamicQuantization"},
    "olive-fp16": {"type": "OnnxFloatToFloat16", "keep_io_types": True},
}
_ENVIRONMENT = Path(__file__).parents[2] / ".venv-olive"
_OURS = ("absl-py", "ai-edge-quantizer", "immutabledict", "litert-lm-builder", "onnx", "scipy")
"""What `firstline[compress]` brings that the workbench has not."""
_LIMIT_S = 300


class Installed(Struct, frozen=True):
    """Bytes on disk.

    Attributes:
        olive: its whole environment, ONNX Runtime and what it needs included.
        ours: what `firstline[compress]` has beyond the workbench.
    """

    olive: int
    ours: int


def missing() -> str:
    """Why it cannot run here; "" where it can."""
    olive = _ENVIRONMENT / "bin" / "olive"
    return "" if olive.exists() else f"Olive is left out: there is no {olive}; make olive installs it (GBs)."


def passes(took_s: dict[str, float]) -> dict[str, Make]:
    """Its techniques by name; how long each took is noted in `took_s`."""
    return {name: _by_olive(name, took_s) for name in PASSES}


def installed() -> Installed:
    """What both take."""
    theirs = (file for file in (_ENVIRONMENT / "lib").rglob("*") if file.is_file() and not file.is_symlink())
    ours = (Path(str(file.locate())) for name in _OURS for file in distribution(name).files or ())
    return Installed(
        sum(file.stat().st_size for file in theirs), sum(file.stat().st_size for file in ours if file.is_file())
    )


def _by_olive(name: str, took_s: dict[str, float]) -> Make:
    """One pass over one model, by `olive run`."""

    def make(file: Path, rows: Array, out: Path) -> None:
        with TemporaryDirectory(prefix="firstline-olive-") as place:
            folder = Path(place)
            (folder / "config.json").write_text(json.dumps(_config(PASSES[name], file, rows, folder)))
            began_s = time.perf_counter()
            done = subprocess.run(
                [_ENVIRONMENT / "bin" / "olive", "run", "--config", folder / "config.json", "--disable_telemetry"],
                cwd=folder,
                env=os.environ | {"OLIVE_DISABLE_TELEMETRY": "1", "PYTHONPATH": ""},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            made = folder / "out" / "model.onnx"
            if done.returncode or not made.is_file():
                raise RuntimeError(f"olive run ended with {done.returncode}: {done.stderr[-200:]}")
            took_s[name] = time.perf_counter() - began_s
            out.write_bytes(made.read_bytes())

    return make


def _config(settings: Mapping[str, object], file: Path, rows: Array, folder: Path) -> dict[str, Any]:
    runtime = OnnxRuntime(file, providers=(CPU,), threads=1)
    given = runtime.inputs[0].name
    runtime.close()
    (folder / "rows" / given).mkdir(parents=True)
    for position, row in enumerate(rows):
        row.tofile(folder / "rows" / given / f"{position:05}.bin")
    data = {"data_dir": str(folder / "rows"), "input_names": [given], "input_shapes": [[1, *rows.shape[1:]]]}
    static = settings["type"] == "OnnxStaticQuantization"
    accelerator = {"device": "cpu", "execution_providers": [CPU]}
    return {
        "input_model": {"type": "ONNXModel", "model_path": str(file)},
        "systems": {"local": {"type": "LocalSystem", "accelerators": [accelerator]}},
        "host": "local",
        "target": "local",
        "data_configs": [{"name": "calibration", "type": "RawDataContainer", "load_dataset_config": data}],
        "passes": {"only": {**settings, **({"data_config": "calibration"} if static else {})}},
        "output_dir": str(folder / "out"),
        "cache_dir": str(folder / "cache"),
        "no_artifacts": True,
    }
