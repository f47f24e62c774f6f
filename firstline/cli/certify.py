"""`firstline certify`: the threshold that a bundle on data, or a table of scores, proves."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.certificate_rows import (
    FromAgentOption,
    FullFromOption,
    FullTokenFileOption,
    Server,
    TokenFileOption,
    gathered,
)
from firstline.cli.contracts import (
    ByOption,
    ContractOption,
    ContractRequest,
    GroupsOption,
    Scope,
    print_groups,
    sentence,
)
from firstline.cli.output import Output, OutputOption, confidence, percent, print_json, warn
from firstline.cli.paths import require_bundle
from firstline.cli.score_table import read_table
from firstline.workbench.bundle_folder import refuse_overwriting
from firstline.workbench.certify import Certification, voided, write_certified
from firstline.workbench.contracts import Terms
from firstline.workbench.dataset import open_dataset
from firstline.workbench.field_certificate import certify_field
from firstline.workbench.scores import can_learn
from firstline.workbench.selection import Selection, check_score, default_fraction
from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certification import Proof, check_share
from firstline_core.routing.contracts import certify_weighted
from firstline_core.telemetry.wording import counted


class Loss(StrEnum):
    """The error of an accepted edge answer that is counted."""

    DISAGREEMENT = "disagreement"  # the full model says another label
    HARM = "harm"  # the edge is wrong where the full model is right


class Choice(StrEnum):
    """The score to certify."""

    BEST = "best"
    BUNDLE = "bundle"
    MARGIN = "margin"
    MAX_PROBABILITY = "max_probability"
    ENTROPY = "entropy"
    ENERGY = "energy"
    LEARNED = "learned"


ScoresOption = Annotated[
    str | None,
    typer.Option(
        help="Instead of --data: CSV file with the columns score and agree (0 or 1); '-' is stdin. With BUNDLE: "
        "the output of `edge-agent audits` on a device that runs it."
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Folder with images/ or images.zip, and labels.csv (columns file, label) if labels are needed."),
]
LossOption = Annotated[
    Loss,
    typer.Option(
        help="disagreement: the full model gives another label; harm: the edge is wrong and the full model is right."
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Folder for the certified bundle, as the next version; without it, no bundle is written."),
]
ScoreOption = Annotated[
    Choice, typer.Option(help="Score to certify: the best on the rows set aside, the bundle's own, or one by name.")
]
SelectOption = Annotated[
    float | None,
    typer.Option(
        help="Share of the rows set aside to decide on score, temperature and where testing starts; 0 certifies on "
        "all rows. Default: 0.1 of a bundle's rows from 1,500 on, else 0."
    ),
]


def certify_command(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="[BUNDLE]", help="Folder of a bundle with edge and full model.")
    ] = None,
    *,
    epsilon: Annotated[float, typer.Option(help="Share of the accepted edge answers that may disagree, e.g. 0.05.")],
    delta: Annotated[float, typer.Option(help="Probability that the promise is wrong, e.g. 0.05.")],
    scores: ScoresOption = None,
    data: DataOption = None,
    loss: LossOption = Loss.DISAGREEMENT,
    contract: ContractOption = Scope.KEPT,
    by: ByOption = None,
    groups: GroupsOption = None,
    edge: Annotated[str, typer.Option(help="Edge variant by id. Default: the first that loads.")] = "",
    from_agent: FromAgentOption = None,
    token_file: TokenFileOption = "",
    full_from: FullFromOption = None,
    full_token_file: FullTokenFileOption = "",
    out: OutOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle at --out.")] = False,
    score: ScoreOption = Choice.BEST,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random split.")] = 0,
    select: SelectOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find the loosest threshold whose accepted edge answers disagree at most epsilon, with confidence 1 - delta.

    An edge answer is accepted if its score is at least the threshold. The rows must be drawn at random from the
    inputs of the field, and none may have been used before to choose the model or its score. Exits 0 whether or not a
    threshold is certified; a bundle is written only if one is.
    """
    if (data is None) == (scores is None) or (scores is None and bundle is None):
        raise ConfigError(
            "Name either a bundle and a folder with --data, or a table with --scores, or a bundle and, with --scores, "
            "the table that `edge-agent audits` prints on its device."
        )
    for name, share in {"epsilon": epsilon, "delta": delta, "the selection fraction": select or 0.5}.items():
        check_share(name, share)  # before the models run for minutes
    request = ContractRequest(contract, by, groups)
    request.check(loss.value, out)
    terms = Terms(epsilon, delta, loss.value, score.value, seed, select)
    opened = _opened(bundle, out, force=force) if bundle is not None else None
    certification: Certification | None
    if scores is not None:
        bundle_options = edge or from_agent or full_from or loss is not Loss.DISAGREEMENT or (out and opened is None)
        if bundle_options or score is not Choice.BEST or not request.plain:
            raise ConfigError(
                "--scores goes with --epsilon, --delta, --select and --seed, and with a bundle also with --out; all "
                "others go with a bundle and --data."
            )
        proof, certification = _of_table(scores, opened, terms)
    else:
        assert opened is not None and data is not None  # noqa: S101 (both were named)
        device, gateway = Server(from_agent, token_file), Server(full_from, full_token_file)
        certification = _of_data(opened, data, edge, (device, gateway), request=request, terms=terms)
        proof = certification.proof
    written = ""
    if opened is not None and certification is not None and certification.certificate is not None and out is not None:
        made = write_certified(opened, certification, out, force=force)
        written = f"{out}: {made.manifest.name} version {made.manifest.version}, {certification.variant.id} certified."
    selection = certification.selection if certification is not None else None
    if output is Output.JSON:
        print_json(asdict(proof) | (_chosen_json(selection) if selection is not None else {}))
        return
    _print_proof(proof, terms, plain=request.plain)
    if selection is not None:
        _print_selection(selection, written, certified=proof.certified)


def _of_data(
    bundle: Bundle,
    folder: Path,
    edge: str,
    servers: tuple[Server, Server],
    *,
    request: ContractRequest,
    terms: Terms,
) -> Certification:
    """Runs the models on a data folder, and returns what the rows prove.

    Args:
        bundle: with an edge and a full model.
        folder: of the data.
        edge: id of the edge variant; "" for the first that loads.
        servers: a device and a gateway that run the models instead of this machine.
        request: the contract.
        terms: of the certificate.
    """
    labelled = terms.contract == "harm" or request.scope is Scope.STREAM
    dataset = open_dataset(folder, labelled=labelled)
    if labelled:
        dataset.check_labels(bundle.manifest.labels)
    fraction = default_fraction(len(dataset)) if terms.select_fraction is None else terms.select_fraction
    variants = [model for model in bundle.manifest.edge if edge in ("", model.id)]
    device, gateway = servers
    logits = device.url is None and any(model.shows_logits for model in variants)
    check_score(terms.score, fraction, logits=logits)
    evidence = gathered(bundle, dataset, edge, device, gateway)
    certification = request.prove(bundle, evidence, dataset, terms)
    _warn(bundle.manifest, certification, learnable=terms.score in ("best", "learned"))
    return certification


def _print_proof(proof: Proof, terms: Terms, *, plain: bool) -> None:
    if plain:
        typer.echo(_sentence(proof, terms))
    else:
        typer.echo(sentence(proof, epsilon=terms.epsilon, delta=terms.delta, contract=terms.contract))
    print_groups(proof)


def _print_selection(selection: Selection, written: str, *, certified: bool) -> None:
    if selection.used:
        typer.echo(_chosen_sentence(selection))
    advice = "; name one with --out" if certified else ""
    typer.echo(written or f"No bundle was written{advice}.")


def _opened(bundle: Path, out: Path | None, *, force: bool) -> Bundle:
    opened = open_bundle(require_bundle(bundle))
    if out is not None:
        refuse_overwriting(out, force)  # before the models run for minutes
    return opened


def _of_table(source: str, bundle: Bundle | None, terms: Terms) -> tuple[Proof, Certification | None]:
    """Returns what a table of scores proves, and the certification of the bundle that it came from, if one is named."""
    rows = read_table(source)
    columns = [row.score for row in rows], [1 - row.agree for row in rows], [row.weight for row in rows]
    fraction = terms.select_fraction or 0.0
    if bundle is None:
        proof = certify_weighted(*columns, terms.epsilon, terms.delta, select_fraction=fraction, seed=terms.seed)
        return proof, None
    certification = certify_field(
        bundle,
        *columns,
        {row.certificate for row in rows},
        epsilon=terms.epsilon,
        delta=terms.delta,
        select_fraction=fraction,
        seed=terms.seed,
    )
    return certification.proof, certification


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


def _sentence(found: Proof, terms: Terms) -> str:
    what = "disagree" if terms.contract == "disagreement" else "are wrong where the full model is right"
    promise = f"at most {percent(terms.epsilon)} of the kept answers {what}, with confidence {confidence(terms.delta)}"
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
