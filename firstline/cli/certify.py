"""`firstline certify`: the threshold that a bundle on data, or a table of scores, proves."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.contracts import ByOption, ContractOption, GroupsOption, Scope, Wish, print_groups, sentence
from firstline.cli.output import Output, OutputOption, confidence, percent, print_json, warn
from firstline.cli.paths import require_bundle
from firstline.cli.rows import (
    FromAgentOption,
    FullFromOption,
    FullTokenFileOption,
    Server,
    TokenFileOption,
    gathered,
)
from firstline.cli.table import read_table
from firstline.workbench.certify import Certification, certify_bundle, voided, write_certified
from firstline.workbench.dataset import open_dataset
from firstline.workbench.field import certify_field
from firstline.workbench.placing import refuse_overwriting
from firstline.workbench.scores import can_learn
from firstline.workbench.selection import Selection, check_score, default_fraction
from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import Proof, check_share
from firstline_core.routing.weighted import certify_weighted
from firstline_core.telemetry.wording import counted


class Loss(StrEnum):
    """What counts against a kept answer."""

    DISAGREEMENT = "disagreement"  # the full model says another label
    HARM = "harm"  # the edge is wrong where the full model is right


class Choice(StrEnum):
    """Which score is certified."""

    BEST = "best"
    BUNDLE = "bundle"
    MARGIN = "margin"
    MAX_PROBABILITY = "max_probability"
    ENTROPY = "entropy"
    ENERGY = "energy"
    LEARNED = "learned"


def certify_command(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="[BUNDLE]", help="Folder of a bundle with edge and full model.")
    ] = None,
    *,
    epsilon: Annotated[float, typer.Option(help="Share of the kept answers that may disagree, such as 0.05.")],
    delta: Annotated[float, typer.Option(help="Probability that the promise is wrong, such as 0.05.")],
    scores: Annotated[
        str | None,
        typer.Option(
            help="Instead of --data: CSV file with the columns score and agree (0 or 1); '-' is stdin. With BUNDLE: "
            "what `edge-agent audits` prints on a device that runs it."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with images/ or images.zip, and labels.csv (columns file, label) where labels matter."
        ),
    ] = None,
    loss: Annotated[
        Loss,
        typer.Option(help="disagreement: the full model says otherwise; harm: the edge is wrong where it is right."),
    ] = Loss.DISAGREEMENT,
    contract: ContractOption = Scope.KEPT,
    by: ByOption = None,
    groups: GroupsOption = None,
    edge: Annotated[str, typer.Option(help="Edge variant by id. Default: the first that loads.")] = "",
    from_agent: FromAgentOption = None,
    token_file: TokenFileOption = "",
    full_from: FullFromOption = None,
    full_token_file: FullTokenFileOption = "",
    out: Annotated[
        Path | None, typer.Option(help="Where the certified bundle goes, as the next version; none is written without.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that lies at --out.")] = False,
    score: Annotated[
        Choice, typer.Option(help="Score to certify: the best on the part set aside, the bundle's own, or one by name.")
    ] = Choice.BEST,
    seed: Annotated[int, typer.Option(min=0, help="Of the split.")] = 0,
    select: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows set aside to decide on score, temperature and where testing starts; 0 certifies on "
            "all rows. Default: 0.1 of a bundle's rows from 1,500 on, else 0."
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find the loosest threshold whose kept answers disagree at most epsilon, with confidence 1 - delta.

    An answer is kept when its score is at least the threshold. Rows must be drawn at random from what will be asked,
    and none may have been used before to choose the model or its score. Exits 0 whether or not a threshold is
    certified; a bundle is written only where one is.
    """
    if (data is None) == (scores is None) or (scores is None and bundle is None):
        raise ConfigError(
            "Name either a bundle and a folder with --data, or a table with --scores, or a bundle and, with --scores, "
            "the table that `edge-agent audits` prints on its device."
        )
    for name, share in {"epsilon": epsilon, "delta": delta, "the selection fraction": select or 0.5}.items():
        check_share(name, share)  # before the models run for minutes
    written, wish = "", Wish(contract, by, groups)
    wish.check(loss.value, out)
    opened = _opened(bundle, out, force=force) if bundle is not None else None
    if scores is not None:
        bundles_own = edge or from_agent or full_from or loss is not Loss.DISAGREEMENT or (out and opened is None)
        if bundles_own or score is not Choice.BEST or not wish.plain:
            raise ConfigError(
                "--scores goes with --epsilon, --delta, --select and --seed, and with a bundle also with --out; all "
                "others go with a bundle and --data."
            )
        found, done = _of_table(scores, opened, epsilon=epsilon, delta=delta, select_fraction=select or 0.0, seed=seed)
    else:
        assert opened is not None and data is not None  # noqa: S101 (both were named)
        labelled = loss is Loss.HARM or contract is Scope.STREAM
        dataset = open_dataset(data, labelled=labelled)
        if labelled:
            dataset.check_labels(opened.manifest.labels)
        share = default_fraction(len(dataset)) if select is None else select
        near = [model for model in opened.manifest.edge if edge in ("", model.id)]
        check_score(score.value, share, logits=from_agent is None and any(model.shows_logits for model in near))
        evidence = gathered(opened, dataset, edge, Server(from_agent, token_file), Server(full_from, full_token_file))
        prove = (
            partial(certify_bundle, opened, evidence) if wish.plain else partial(wish.prove, opened, evidence, dataset)
        )
        done = prove(
            epsilon=epsilon,
            delta=delta,
            contract=loss.value,
            score=score.value,
            seed=seed,
            select_fraction=select,
        )
        found = done.proof
        _warn(opened.manifest, done, learnable=score in (Choice.BEST, Choice.LEARNED))
    chosen = done.selection if done is not None else None
    if opened is not None and done is not None and done.certificate is not None and out is not None:
        made = write_certified(opened, done, out, force=force)
        written = f"{out}: {made.manifest.name} version {made.manifest.version}, {done.variant.id} certified."
    if output is Output.JSON:
        print_json(asdict(found) | (_chosen_json(chosen) if chosen is not None else {}))
        return
    typer.echo(
        _sentence(found, epsilon, delta, loss)
        if wish.plain
        else sentence(found, epsilon=epsilon, delta=delta, contract=loss.value)
    )
    print_groups(found)
    if chosen is not None:
        if chosen.used:
            typer.echo(_chosen_sentence(chosen))
        name_one = "; name one with --out" if found.certified else ""
        typer.echo(written or f"No bundle was written{name_one}.")


def _opened(bundle: Path, out: Path | None, *, force: bool) -> Bundle:
    opened = open_bundle(require_bundle(bundle))
    if out is not None:
        refuse_overwriting(out, force)  # before the models run for minutes
    return opened


def _of_table(
    source: str, opened: Bundle | None, *, epsilon: float, delta: float, select_fraction: float, seed: int
) -> tuple[Proof, Certification | None]:
    """What a table proves, and what that makes of the bundle that it came from, where one is named."""
    rows = read_table(source)
    columns = [row.score for row in rows], [1 - row.agree for row in rows], [row.weight for row in rows]
    if opened is None:
        return certify_weighted(*columns, epsilon, delta, select_fraction=select_fraction, seed=seed), None
    keys = {row.certificate for row in rows}
    done = certify_field(
        opened, *columns, keys, epsilon=epsilon, delta=delta, select_fraction=select_fraction, seed=seed
    )
    return done.proof, done


def _warn(manifest: Manifest, done: Certification, *, learnable: bool) -> None:
    if learnable and done.selection.used and not can_learn():
        warn("scikit-learn is not installed, so no score was learned: pip install 'firstline[analysis]'.")
    if done.certificate is not None and (lost := voided(manifest, done)):
        warn(f"The score changes: certificates of {', '.join(lost)} are void; renew them with --score bundle.")


def _chosen_json(chosen: Selection) -> dict[str, object]:
    return {
        "score": chosen.score.kind,
        "temperature": chosen.score.temperature,
        "selected": chosen.used,
        "auroc": chosen.aurocs,
    }


def _chosen_sentence(chosen: Selection) -> str:
    best_first = sorted(chosen.aurocs.items(), key=lambda item: -item[1])
    compared = ", ".join(f"{name} {area:.3f}" for name, area in best_first) or "too few losses to compare scores"
    # A learned score does not look at the temperature.
    heated = "" if chosen.score.learned is not None else f" at temperature {chosen.score.temperature:g}"
    return f"{counted(chosen.used, 'other row')} decided on the score: {chosen.score.kind}{heated} (AUROC: {compared})."


def _sentence(found: Proof, epsilon: float, delta: float, loss: Loss) -> str:
    what = "disagree" if loss is Loss.DISAGREEMENT else "are wrong where the full model is right"
    promise = f"at most {percent(epsilon)} of the kept answers {what}, with confidence {confidence(delta)}"
    if found.threshold is None or found.risk_upper is None:
        return (
            f"Not certified on {found.n} rows that {promise}; escalate everything. Some threshold would have to keep "
            f"at least {counted(found.n_needed, 'more row')} without a single error."
        )
    return (
        f"Certified on {found.n} rows: {promise}, when an answer is kept at a score of at least "
        f"{found.threshold:.15g}. That keeps {percent(found.kept)}; the upper bound of their risk is "
        f"{percent(found.risk_upper)}."
    )
