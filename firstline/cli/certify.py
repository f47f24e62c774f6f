"""`firstline certify`: the threshold that a table of scores proves."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.output import Output, OutputOption, print_json
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import Certificate, certify

_STDIN = "-"


def certify_scores(
    *,
    scores: Annotated[
        str, typer.Option(help="CSV file with the columns score and agree (0 or 1); '-' is standard input.")
    ],
    epsilon: Annotated[float, typer.Option(help="Share of the kept answers that may disagree, such as 0.05.")],
    delta: Annotated[float, typer.Option(help="Probability that the promise is wrong, such as 0.05.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the split with --select.")] = 0,
    select: Annotated[
        float, typer.Option(help="Share of the rows that only chooses where testing starts; 0 certifies on all rows.")
    ] = 0.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find the loosest threshold whose kept answers disagree at most epsilon, with confidence 1 - delta.

    An answer is kept when its score is at least the threshold. Rows must be drawn at random from what will be asked,
    and none may have been used to choose the model or its score. Exits 0 whether or not a threshold is certified.
    """
    rows = _read(scores)
    found = certify(
        [score for score, _ in rows],
        [1 - agree for _, agree in rows],
        epsilon,
        delta,
        select_fraction=select,
        seed=seed,
    )
    if output is Output.JSON:
        print_json(asdict(found))
    else:
        typer.echo(_sentence(found, epsilon, delta))


def _read(source: str) -> list[tuple[float, int]]:
    try:
        if source == _STDIN:
            return list(_rows(sys.stdin, "standard input"))
        with Path(source).open(newline="", encoding="utf-8-sig") as stream:
            return list(_rows(stream, source))
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not a CSV file in UTF-8: {error}.") from error


def _rows(lines: Iterable[str], source: str) -> Iterator[tuple[float, int]]:
    reader = csv.DictReader(lines, strict=True, skipinitialspace=True)
    try:
        names = [name.strip().removeprefix("\ufeff") for name in reader.fieldnames or ()]
        missing = [name for name in ("score", "agree") if name not in names]
        if missing:
            raise ConfigError(
                f"{source}:1 has no column {' and '.join(missing)}; the first line names the columns: score,agree."
            )
        reader.fieldnames = names
        count = 0
        for row in reader:
            yield (
                _score(row["score"], f"{source}:{reader.line_num}"),
                _agree(row["agree"], f"{source}:{reader.line_num}"),
            )
            count += 1
    except csv.Error as error:
        raise ConfigError(f"{source}:{reader.line_num} is not CSV: {error}.") from error
    if not count:
        raise ConfigError(f"{source} has no rows below its first line; a certificate needs some.")


def _score(text: str | None, where: str) -> float:
    try:
        found = float(text or "")
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(f"{where} has the score '{text or ''}'; a score is a finite number.")
    return found


def _agree(text: str | None, where: str) -> int:
    if (text or "").strip() not in ("0", "1"):
        raise ConfigError(f"{where} has '{text or ''}' under agree; it is 1 where edge and full model agree, else 0.")
    return int(text or "")


def _sentence(found: Certificate, epsilon: float, delta: float) -> str:
    promise = f"at most {_percent(epsilon)} of the kept answers disagree, with confidence {_percent(1 - delta)}"
    if found.threshold is None or found.risk_upper is None:
        return (
            f"Not certified on {found.n} rows that {promise}; escalate everything. Some threshold would have to keep "
            f"at least {found.n_needed} more rows without a single error."
        )
    return (
        f"Certified on {found.n} rows: {promise}, when an answer is kept at a score of at least "
        f"{found.threshold:.15g}. That keeps {_percent(found.kept)}; the upper bound of their risk is "
        f"{_percent(found.risk_upper)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
