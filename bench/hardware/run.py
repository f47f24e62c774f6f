"""Runs the parts of the hardware benchmark, and writes their figures and records.

It prints the figures of this run, and the reason for each part that could not run. The file and the pages also keep
the figures of other models and parts that earlier runs measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from bench import page
from bench.figures import Figure, keep, named, stored, tell
from bench.hardware import prediction
from bench.hardware.controller import runs as controller
from bench.hardware.controller.scenario import Scenario
from bench.pools import DATA, Pair

TARGET = "hardware"
MISSED, NOT_RUN = 1, 2

_Record = TypeVar("_Record")


class Outcome(NamedTuple):
    """The result of a part.

    Attributes:
        figures: of this run.
        written: figures of the whole record, which covers earlier runs too.
        record: the raw results; None if there is nothing to write.
        missing: a sentence with the reason for each thing that could not run.
    """

    figures: Sequence[Figure] = ()
    written: Sequence[Figure] = ()
    record: Any = None
    missing: tuple[str, ...] = ()


class Part(NamedTuple):
    """One part of the benchmark.

    Attributes:
        run: takes the present record ({} if there is none), and whether the run is a quick trial.
        figures: of a record, without a measurement; None if a record does not contain everything.
    """

    run: Callable[[Any, bool], Outcome]
    figures: Callable[[Any], Sequence[Figure]] | None = None


def whole(name: str, measure: Callable[[], tuple[Sequence[Figure], Any]]) -> Part:
    """Returns a part that runs as a whole; without figures, `measure` has printed why."""

    def run(_before: Any, _quick: bool) -> Outcome:
        figures, record = measure()
        if not figures:
            return Outcome(missing=(f"{name} was not run, for the reason above.",))
        return Outcome(figures, figures, record)

    return Part(run)


def by_model(
    name: str,
    models: Mapping[str, Pair],
    record: type[_Record],
    *,
    measure: Callable[[str, bool], _Record],
    figures: Callable[[dict[str, _Record]], Sequence[Figure]],
) -> Part:
    """Returns a part that measures model by model; a quick trial measures the first one only.

    Args:
        name: of the part.
        models: the models by name, with the data that each needs.
        record: type of one model's record.
        measure: measures one model by its name, with the fewest rounds if the second argument is true.
        figures: of all records.
    """

    def read(records: Any) -> dict[str, _Record]:
        return {model: msgspec.convert(each, record) for model, each in records.items()}

    def run(before: Any, quick: bool) -> Outcome:
        found: dict[str, _Record] = {}
        missing = []
        for model in list(models)[:1] if quick else models:
            if (folder := models[model].missing_in(DATA)) is not None:
                missing.append(f"{name}: {model} was not run: there is no {folder}.")
                continue
            print(f"{name}: {model}", file=sys.stderr, flush=True)
            found[model] = measure(model, quick)
        if not found:
            return Outcome(missing=tuple(missing))
        merged = read(before) | found
        merged = {model: merged[model] for model in models if model in merged}
        return Outcome(figures(found), figures(merged), merged, tuple(missing))

    return Part(run, lambda records: figures(read(records)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if all ran and every aim holds, 1 if an aim is missed, 2 if a requested part could not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.hardware", description=__doc__)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it runs, with the fewest rounds; write nothing")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    missing: list[str] = []
    for name in options.only:
        outcome = PARTS[name].run(stored(TARGET).get(name, {}), options.quick)
        figures += named(name, outcome.figures)
        missing += outcome.missing
        if outcome.record is not None and not options.quick:
            _write(name, outcome)
    status = tell(figures)
    for sentence in missing:
        print(sentence)
    return NOT_RUN if missing else status


def _write(name: str, outcome: Outcome) -> None:
    """Writes one part to the file, drops parts that no longer exist, and fills the pages again."""
    records = {**stored(TARGET), name: msgspec.to_builtins(outcome.record)}
    keep(TARGET, {name: outcome.written}, PARTS, {part: records[part] for part in PARTS if part in records})
    page.refill(TARGET)


def _controller() -> tuple[Sequence[Figure], Any]:
    print("controller: an hour", file=sys.stderr, flush=True)
    scenario = Scenario()
    return controller.measure(scenario), {"scenario": msgspec.to_builtins(scenario)}


PARTS: dict[str, Part] = {
    "controller": whole("controller", _controller),
    "prediction": by_model(
        "prediction",
        {pair.name: pair for pair in prediction.PAIRS},
        list[prediction.Trial],
        measure=prediction.measure,
        figures=prediction.figures,
    ),
}
