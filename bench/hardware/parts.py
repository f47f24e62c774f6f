"""What a part of the benchmark is, and what comes of it: what it measured, and what it was asked for and could not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from bench.figures import Figure
from bench.pools import DATA, Pair

_Record = TypeVar("_Record")


class Asked(NamedTuple):
    """What was asked for.

    Attributes:
        models: names; none for all.
        quick: the fewest rounds of the first model alone, to see that it runs: nothing is written.
    """

    models: tuple[str, ...] = ()
    quick: bool = False


class Outcome(NamedTuple):
    """What came of a part.

    Attributes:
        told: figures of what this run measured.
        written: figures of all that stands in the record, also of what earlier runs measured.
        beside: the record; None where there is nothing to write.
        missing: what was asked for and not run, each a sentence that says why.
    """

    told: Sequence[Figure] = ()
    written: Sequence[Figure] = ()
    beside: Any = None
    missing: tuple[str, ...] = ()


class Part(NamedTuple):
    """One of them.

    Attributes:
        run: given the record as it stands ({} where there is none), and what was asked for.
        figures: of a record, without measuring anything; None where a record does not say all.
        models: whose names narrow it; none where nothing does.
    """

    run: Callable[[Any, Asked], Outcome]
    figures: Callable[[Any], Sequence[Figure]] | None = None
    models: tuple[str, ...] = ()


def whole(name: str, measure: Callable[[Asked], tuple[Sequence[Figure], Any]]) -> Part:
    """One that is run as a whole; where it measured nothing, it said why."""

    def run(_before: Any, asked: Asked) -> Outcome:
        figures, beside = measure(asked)
        if not figures:
            return Outcome(missing=(f"{name} was not run, for what is said above.",))
        return Outcome(figures, figures, beside)

    return Part(run)


def by_model(
    name: str,
    models: Mapping[str, Pair],
    record: type[_Record],
    *,
    measure: Callable[[str, Asked], _Record],
    figures: Callable[[dict[str, _Record]], Sequence[Figure]],
) -> Part:
    """One that measures model by model: what is not asked for stays as it was.

    Args:
        name: of the part.
        models: their names, and what each needs.
        record: of one model.
        measure: it, by its name.
        figures: of all records.
    """

    def read(said: Any) -> dict[str, _Record]:
        return {model: msgspec.convert(each, record) for model, each in said.items()}

    def run(before: Any, asked: Asked) -> Outcome:
        stands, found, missing = read(before), {}, []
        for model in list(models)[:1] if asked.quick and not asked.models else models:
            if asked.models and model not in asked.models:
                continue
            if (folder := models[model].missing_in(DATA)) is not None:
                missing.append(f"{name}: {model} was not run: there is no {folder}.")
                continue
            print(f"{name}: {model}", file=sys.stderr, flush=True)
            stands[model] = found[model] = measure(model, asked)
        if not found:
            return Outcome(missing=tuple(missing))
        stands = {model: stands[model] for model in models if model in stands}
        return Outcome(figures(found), figures(stands), stands, tuple(missing))

    return Part(run, lambda said: figures(read(said)), tuple(models))
