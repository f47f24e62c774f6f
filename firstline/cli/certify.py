"""`firstline certify`: the threshold that a bundle on data, or a table of scores, proves."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.output import Output, OutputOption, print_json
from firstline.cli.paths import require_bundle
from firstline.cli.rows import (
    FromAgentOption,
    FullFromOption,
    FullTokenFileOption,
    Server,
    TokenFileOption,
    gathered,
)
from firstline.workbench.certify import certify_bundle, write_certified
from firstline.workbench.dataset import open_dataset
from firstline.workbench.placing import refuse_overwriting
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import Certificate, certify, check_share

_STDIN = "-"


class Loss(StrEnum):
    """What counts against a kept answer."""

    DISAGREEMENT = "disagreement"  # the full model says another label
    HARM = "harm"  # the edge is wrong where the full model is right


def certify_command(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="[BUNDLE]", help="Folder of a bundle with edge and full model.")
    ] = None,
    *,
    epsilon: Annotated[float, typer.Option(help="Share of the kept answers that may disagree, such as 0.05.")],
    delta: Annotated[float, typer.Option(help="Probability that the promise is wrong, such as 0.05.")],
    scores: Annotated[
        str | None,
        typer.Option(help="Instead of BUNDLE: CSV file with the columns score and agree (0 or 1); '-' is stdin."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with labels.csv (columns file, label) and images/ or images.zip.")
    ] = None,
    loss: Annotated[
        Loss,
        typer.Option(help="disagreement: the full model says otherwise; harm: the edge is wrong where it is right."),
    ] = Loss.DISAGREEMENT,
    edge: Annotated[str, typer.Option(help="Edge variant by id. Default: the first that loads.")] = "",
    from_agent: FromAgentOption = None,
    token_file: TokenFileOption = "",
    full_from: FullFromOption = None,
    full_token_file: FullTokenFileOption = "",
    out: Annotated[
        Path | None, typer.Option(help="Where the certified bundle goes, as the next version; none is written without.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that lies at --out.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the split with --select.")] = 0,
    select: Annotated[
        float, typer.Option(help="Share of the rows that only chooses where testing starts; 0 certifies on all rows.")
    ] = 0.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find the loosest threshold whose kept answers disagree at most epsilon, with confidence 1 - delta.

    An answer is kept when its score is at least the threshold. Rows must be drawn at random from what will be asked,
    and none may have been used to choose the model or its score. Exits 0 whether or not a threshold is certified; a
    bundle is written only where one is.
    """
    if (bundle is None) == (scores is None):
        raise ConfigError("Name either a bundle, with --data, or a table with --scores.")
    check_share("epsilon", epsilon)  # before the models run for minutes
    check_share("delta", delta)
    if select:
        check_share("the selection fraction", select)
    written = ""
    if bundle is None:
        if data is not None or out is not None or edge or from_agent or full_from or loss is not Loss.DISAGREEMENT:
            raise ConfigError(
                "--data, --loss, --edge, --from-agent and --out go with a bundle; a table has scores and agreements."
            )
        rows = _read(scores or "")
        found = certify(
            [score for score, _ in rows],
            [1 - agree for _, agree in rows],
            epsilon,
            delta,
            select_fraction=select,
            seed=seed,
        )
    else:
        if data is None:
            raise ConfigError("A bundle is certified on data; name a folder with --data.")
        opened = open_bundle(require_bundle(bundle))
        if out is not None:
            refuse_overwriting(out, force)  # before the models run for minutes
        dataset = open_dataset(data)
        if loss is Loss.HARM:
            dataset.check_labels(opened.manifest.labels)
        evidence = gathered(opened, dataset, edge, Server(from_agent, token_file), Server(full_from, full_token_file))
        done = certify_bundle(
            opened, evidence, epsilon=epsilon, delta=delta, contract=loss.value, seed=seed, select_fraction=select
        )
        found = done.proof
        if done.certificate is not None and out is not None:
            made = write_certified(opened, done, out, force=force)
            written = f"{out}: {made.manifest.name} version {made.manifest.version}, {done.variant.id} certified."
    if output is Output.JSON:
        print_json(asdict(found))
        return
    typer.echo(_sentence(found, epsilon, delta, loss))
    if written:
        typer.echo(written)
    elif bundle is not None:
        typer.echo("No bundle was written." if not found.certified else "No bundle was written; name one with --out.")


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


def _sentence(found: Certificate, epsilon: float, delta: float, loss: Loss) -> str:
    what = "disagree" if loss is Loss.DISAGREEMENT else "are wrong where the full model is right"
    promise = f"at most {_percent(epsilon)} of the kept answers {what}, with confidence {_percent(1 - delta)}"
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
