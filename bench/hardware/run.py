"""Runs the parts, and writes their figures and what they measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from figures import RESULTS, Figure, measured, tell, write
from pools import DATA, Pair

from hardware import compress, energy, exits, memory, olive, plots, prediction, profiling, split
from hardware.controller import runs as controller
from hardware.controller.scenario import Stated
from hardware.scheduler import runs as scheduler

TARGET = "bench-hardware"
PLOTS = RESULTS / "hardware"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every aim holds, 1 where one does not."""
    parser = argparse.ArgumentParser(prog="bench_hardware.py", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument(
        "--models",
        nargs="+",
        default=[],
        help="of the parts 'split', 'compress', 'olive' and 'prediction', by name (default: all)",
    )
    said = parser.parse_args(arguments)
    PLOTS.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    for name in said.only:
        before = _beside().get(name, {})
        found, beside = PARTS[name](before, said)
        if not found:  # nothing that it needs is here, which it said
            continue
        named = [one._replace(figure=f"{name}: {one.figure}") for one in found]
        # What was not run stays as it was measured.
        others = [row for row in measured(TARGET) if not row.figure.startswith(f"{name}: ")]
        write(TARGET, [*others, *named], {**_beside(), name: msgspec.to_builtins(beside)})
        figures += named
    return tell(figures)


def _beside() -> dict[str, Any]:
    path = RESULTS / f"{TARGET}.json"
    if not path.exists():
        return {}
    said = json.loads(path.read_text())
    return {name: value for name, value in said.items() if name != "figures"} if isinstance(said, dict) else {}


def _is_measured(part: str, name: str, pair: Pair, said: argparse.Namespace) -> bool:
    """Whether a model is asked for and its files are here; says so."""
    if said.models and name not in said.models:
        return False
    if (missing := pair.missing_in(DATA)) is not None:
        print(f"{name} is left out: there is no {missing}.", file=sys.stderr)
        return False
    print(f"{part}: {name}", file=sys.stderr, flush=True)
    return True


def _split(before: dict[str, Any], said: argparse.Namespace) -> tuple[list[Figure], Any]:
    records = {name: msgspec.convert(record, split.Record) for name, record in before.items()}
    for subject in split.SUBJECTS:
        if not _is_measured("split", subject.name, subject.pair, said):
            continue
        records[subject.name] = split.measure(subject)
    if records:
        plots.draw_split(records, PLOTS)
    return split.figures(list(records.values())), records


def _compress(before: dict[str, Any], said: argparse.Namespace) -> tuple[list[Figure], Any]:
    records = {name: msgspec.convert(record, compress.Record) for name, record in before.items()}
    for subject in compress.SUBJECTS:
        if not _is_measured("compress", subject.name, subject, said):
            continue
        records[subject.name] = compress.measure(subject)
    return compress.figures(records), records


def _olive(before: dict[str, Any], said: argparse.Namespace) -> tuple[list[Figure], Any]:
    records = {name: msgspec.convert(record, olive.Beside) for name, record in before.get("records", {}).items()}
    sizes = msgspec.convert(before["installed"], olive.Installed) if before.get("installed") else None
    if why := olive.missing():
        print(why, file=sys.stderr)
        return olive.figures(records, sizes), before
    for subject in olive.SUBJECTS:
        if not _is_measured("olive", subject.name, subject, said):
            continue
        records[subject.name] = olive.measure(subject)
    sizes = olive.installed()
    return olive.figures(records, sizes), {"records": records, "installed": sizes}


def _exits(_before: dict[str, Any], _said: argparse.Namespace) -> tuple[list[Figure], Any]:
    records = exits.measure()
    return exits.figures(records), records


def _energy(_before: dict[str, Any], _said: argparse.Namespace) -> tuple[list[Figure], Any]:
    records = energy.measure()
    plots.draw_energy(records, PLOTS)
    return energy.figures(records), records


def _prediction(before: dict[str, Any], said: argparse.Namespace) -> tuple[list[Figure], Any]:
    found = prediction.measure(said.models)
    names = {trial.pair for trial in found}
    kept = [
        msgspec.convert(trial, prediction.Trial) for trial in before.get("trials", []) if trial["pair"] not in names
    ]
    order = [pair.name for pair in prediction.PAIRS]
    trials = sorted((*kept, *found), key=lambda trial: (order.index(trial.pair), trial.threads))
    return prediction.figures(trials), {"trials": trials}


def _profiling(_before: dict[str, Any], _said: argparse.Namespace) -> tuple[list[Figure], Any]:
    records = profiling.measure()
    return profiling.figures(records), {"records": records}


def _controller(before: dict[str, Any], said: argparse.Namespace) -> tuple[list[Figure], Any]:
    print("controller: an hour, and what it depends on", file=sys.stderr, flush=True)
    found, of = controller.measure()
    return found, {"stated": msgspec.to_builtins(Stated()), "measured": of}


def _scheduler(_before: dict[str, Any], _said: argparse.Namespace) -> tuple[list[Figure], Any]:
    return scheduler.measure()


def _memory(_before: dict[str, Any], _said: argparse.Namespace) -> tuple[list[Figure], Any]:
    found, runs = memory.measure()
    return found, {"runs": runs}


PARTS = {
    "split": _split,
    "exits": _exits,
    "energy": _energy,
    "controller": _controller,
    "prediction": _prediction,
    "profiling": _profiling,
    "compress": _compress,
    "olive": _olive,
    "scheduler": _scheduler,
    "memory": _memory,
}
