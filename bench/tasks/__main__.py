"""Measures the tasks on pairs of third-party models, next to the figures that others measured.

    python -m bench.tasks [--data DIR] [--only PART]

Prints the figures of this run, and writes them to bench/results/tasks.json and docs/benchmarks.md. Parts without data,
and those that --only leaves out, keep the figures of an earlier run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from bench.figures import Figure
from bench.parts import measure
from bench.pools import DATA
from bench.tasks import (
    bargain,
    contracts,
    detection,
    detector_speed,
    difficult_cases,
    forecast,
    gateway_speed,
    segmentation,
)

PARTS: Mapping[str, tuple[str, Callable[[Path], Iterable[Figure]]]] = {
    "detection": ("coco-cascade", detection.figures),
    "segmentation": ("pascal-segmentation-cascade", segmentation.figures),
    "forecast": ("nab-forecast-cascade", forecast.figures),
    "detector_speed": ("coco-cascade", detector_speed.figures),
    "gateway_speed": ("coco-cascade", gateway_speed.figures),
    "difficult_cases": ("coco-cascade", difficult_cases.figures),
    "bargain": ("cifar10-cascade", bargain.figures),
    "contracts": ("coco-cascade", contracts.figures),
}
"""The pair of each part, and what measures it in the pair's folder."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the pairs (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=PARTS, help="measures this part; the others keep theirs")
    arguments = parser.parse_args()
    return measure("tasks", {name: partial(_measured, name, arguments.data) for name in PARTS}, arguments.only or PARTS)


def _measured(name: str, folder: Path) -> tuple[list[Figure], None]:
    """Measures a part; see `parts.Part`."""
    pair, figures = PARTS[name]
    if not (folder / pair).is_dir():
        print(f"{pair} is skipped: {folder} does not have it.", file=sys.stderr)
        return [], None
    return list(figures(folder / pair)), None


if __name__ == "__main__":
    sys.exit(main())
