"""Measures the tasks on pairs of third-party models, next to the figures that others measured.

    python -m bench.tasks [--data DIR]

Prints every figure, and writes them to bench/results/tasks.json and docs/benchmarks.md. Pairs without data are skipped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bench.figures import Figure, report
from bench.page import refill
from bench.pools import DATA
from bench.tasks import classification, detection, detector_speed

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

PARTS: Mapping[str, tuple[str, Callable[[Path], Iterable[Figure]]]] = {
    "detection": ("coco-cascade", detection.figures),
    "detector_speed": ("coco-cascade", detector_speed.figures),
    "spoken digits": ("spoken-digits-cascade", classification.spoken_digits),
}
"""The pair of each part, and what measures it in the pair's folder."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the pairs (default: %(default)s)")
    folder = parser.parse_args().data
    figures: list[Figure] = []
    for part, (pair, measure) in PARTS.items():
        if (folder / pair).is_dir():
            figures += (figure._replace(figure=f"{part}: {figure.figure}") for figure in measure(folder / pair))
        else:
            print(f"{pair} is skipped: {folder} does not have it.", file=sys.stderr)
    code = report("tasks", figures)
    refill(PAGE)
    return code


if __name__ == "__main__":
    sys.exit(main())
