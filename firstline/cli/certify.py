"""`firstline certify`: the threshold that a bundle on data, or a table of scores, proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group
from firstline.cli.options import DataReading, require_bundle
from firstline.cli.output import percent, progress, rows_checked_sentence, table, warn
from firstline_core.errors import ConfigError
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table

    from firstline.cli.proof_text import caveats, promises_text
    from firstline.client.sync_client import Client
    from firstline.workbench import selection
    from firstline.workbench.bundle import refuse_overwriting
    from firstline.workbench.certify import (
        Certification,
        GroupsResult,
        Terms,
        certify_bundle,
        certify_by,
        certify_classes,
        certify_field,
        certify_field_promises,
        certify_stream_bundle,
        voided,
        write_certified,
    )
    from firstline.workbench.data.dataset import Dataset, read_groups
    from firstline.workbench.event_promises import parse_promises, require_event
    from firstline.workbench.evidence import Evidence, gather, gather_from_agent, require_labels
    from firstline.workbench.row_checks import require_independent_rows
    from firstline.workbench.score_table import read_score_table
    from firstline_core.bundle.manifest import Manifest, valid_certificate
    from firstline_core.bundle.store import Bundle, open_bundle
    from firstline_core.routing.certificate import points, promise_text
    from firstline_core.routing.certification import CertificationResult, check_share
    from firstline_core.routing.contracts import EventsResult, certify_weighted

app = command_group()

# The longest that a tier may stay silent: a slow device runs a model meanwhile.
_TIMEOUT_S = 70.0
_UNCERTIFIED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ContractOptions:
    """The contract; `plain` is the one on all accepted edge answers together.

    Attributes:
        epsilon: Share of the accepted edge answers that may disagree, or their mean loss, e.g. 0.05.
        delta: Probability that the promise is wrong, e.g. 0.05.
        loss: disagreement: the full model gives another label; harm: the edge is wrong and the full model is right.
        scope: kept: errors among accepted edge answers; stream: accuracy lost by both tiers together (needs labels).
        by: class: a promise and a threshold for each predicted class.
        promise: Instead of --epsilon and --delta: a promise about an event, such as 'missed person 5% at 90%'; may be
            repeated.
        groups: File with the columns file and group: a promise for each group; no bundle is written.
    """

    epsilon: float | None = None
    delta: float | None = None
    loss: Literal["disagreement", "harm"] = "disagreement"
    scope: Annotated[Literal["kept", "stream"], typer.Option("--contract")] = "kept"
    by: Literal["class"] | None = None
    promise: Annotated[list[str] | None, typer.Option(metavar="TEXT")] = None
    groups: Annotated[Path | None, typer.Option(metavar="CSV")] = None

    @property
    def plain(self) -> bool:
        return self.scope == "kept" and self.by is None and self.groups is None and not self.promise

    @property
    def needs_labels(self) -> bool:
        return self.loss == "harm" or self.scope == "stream"

    def check(self, out: Path | None) -> None:
        """Raises ConfigError for options that do not go together."""
        alone = self.scope == "kept" and self.by is None and self.groups is None and self.loss == "disagreement"
        if self.promise and not (alone and self.epsilon is None and self.delta is None):
            raise ConfigError(
                "--promise names the event, its share and the confidence; leave out --epsilon, --delta, --loss, "
                "--contract, --by and --groups."
            )
        if self.scope == "stream" and (self.by or self.groups is not None or self.loss == "harm"):
            raise ConfigError("--contract stream is about all answers together; leave out --by, --groups and --loss.")
        if self.by is not None and self.groups is not None:
            raise ConfigError("--by class and --groups are two ways to form groups; name one of them.")
        if self.groups is not None and out is not None:
            raise ConfigError(
                "--out does not go with --groups: a device does not know the group of an input. For a bundle for one "
                "group, certify on the data of that group alone."
            )

    def certify(self, bundle: Bundle, evidence: Evidence, groups: list[str], terms: Terms) -> Certification:
        """Returns what the rows prove about this contract, for each of their groups if it names groups.

        Raises:
            ConfigError: arguments out of range, groups that do not fit the data, or a score that separates no answers.
        """
        if self.scope == "stream":
            return certify_stream_bundle(bundle, evidence, terms)
        if self.groups is not None:
            return certify_by(bundle, evidence, groups, "group", terms)
        if self.by is not None:
            return certify_classes(bundle, evidence, terms)
        return certify_bundle(bundle, evidence, terms)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """The device and the gateway that run the models instead of this machine.

    Attributes:
        from_agent: Device that answers the data, so that scores are those of its processor; it must hold the same
            bundle.
        token_file: File with the device's token, if it requires one.
        full_from: With --from-agent: gateway that runs the full model; default: this machine.
        full_token_file: File with the gateway's token.
    """

    from_agent: Annotated[str | None, typer.Option(metavar="URL")] = None
    token_file: Annotated[str, typer.Option(metavar="FILE")] = ""
    full_from: Annotated[str | None, typer.Option(metavar="URL")] = None
    full_token_file: Annotated[str, typer.Option(metavar="FILE")] = ""

    def gather(self, bundle: Bundle, dataset: Dataset, edge: str) -> Evidence:
        """Collects the rows of a certificate, with a progress bar.

        Raises:
            ConfigError: options that do not go together; and what `gather` and `gather_from_agent` raise.
        """
        with ExitStack() as stack:
            agent = _client(stack, "--from-agent", self.from_agent, "--token-file", self.token_file)
            gateway = _client(stack, "--full-from", self.full_from, "--full-token-file", self.full_token_file)
            if gateway is not None and agent is None:
                raise ConfigError("--full-from goes with --from-agent: without a device both models run here.")
            bar = stack.enter_context(progress("Certifying"))
            if agent is None:
                return gather(bundle, dataset, edge=edge, progress=bar)
            return gather_from_agent(bundle, dataset, agent, edge=edge, gateway=gateway, progress=bar)


def _client(stack: ExitStack, url_option: str, url: str | None, token_option: str, token_file: str) -> Client | None:
    """Returns a client that closes with the stack; None without a URL.

    Raises:
        ConfigError: the URL is not valid, the token's file cannot be read, or there is a token without a URL.
    """
    if url is None:
        if token_file:
            raise ConfigError(f"{token_option} goes with {url_option}: it names the file of that server's token.")
        return None
    token = read_secret(token_file, token_option, "the token") or None
    return stack.enter_context(Client(url, token=token, timeout_s=_TIMEOUT_S))


@command(
    app,
    "certify",
    example="firstline certify digits --data digits/test --epsilon 0.05 --delta 0.05 --out digits-certified",
)
def certify_command(
    contract: ContractOptions,
    tiers: TierOptions,
    reading: DataReading,
    *,
    bundle: Annotated[Path | None, typer.Argument(metavar="[BUNDLE]")] = None,
    scores: str | None = None,
    data: Path | None = None,
    edge: str = "",
    out: Path | None = None,
    force: bool = False,
    require: bool = False,
    score: str = "best",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    select: float | None = None,
) -> Report:
    """Find the loosest threshold at which the accepted edge answers keep a promise, with confidence 1 - delta.

    An edge answer is accepted if its score is at least the threshold. The rows must be drawn at random from the
    inputs of the field, and none may have been used before to choose the model or its score. Exits 0 whether or not a
    threshold is certified, unless --require is given; a bundle is written only if one is.

    Args:
        bundle: Folder of a bundle with edge and full model.
        scores: Instead of --data: CSV file with the columns score and agree (1, 0, or 1 - loss); '-' is stdin. With
            BUNDLE: the output of `edge-agent audit list` on a device that runs it.
        data: Folder of images, recordings or videos, or a table; with labels if the contract needs them.
        edge: Edge variant by id. Default: the first that loads.
        out: Folder for the certified bundle, as the next version; without it, no bundle is written.
        force: Replace an existing bundle at --out.
        require: Exit with 1 if nothing is certified.
        score: Score to certify: 'best' on the rows set aside, 'bundle' for the bundle's own, 'learned', or one of the
            task's by name.
        seed: Seed of the random split.
        select: Share of the rows set aside to decide on score, temperature and where testing starts; 0 certifies on all
            rows. Default: 0.1 of a bundle's rows from 1,500 on, else 0.
    """
    _check_sources(bundle, data, scores)
    needs_bundle = bundle is None and (out or contract.promise)
    needs_data = edge or tiers.from_agent or tiers.full_from or score != selection.BEST or contract.loss == "harm"
    if scores is not None and (needs_bundle or needs_data or not (contract.plain or contract.promise)):
        raise ConfigError(
            "--scores goes with --epsilon, --delta, --select and --seed, and with a bundle also with --promise and "
            "--out; all others go with a bundle and --data."
        )
    contract.check(out)
    terms = Terms(contract.epsilon or 0, contract.delta or 0, contract.loss, score, seed, select)
    opened, terms = _prepare(contract, bundle, out, terms, audited=scores is not None, force=force)
    if opened is None:
        assert scores is not None  # noqa: S101 (data comes with a bundle)
        result, report = _certify_scores(scores, terms)
    else:
        if scores is not None:
            certification, rows_checked = _certify_audits(scores, opened, contract, terms)
        else:
            assert data is not None  # noqa: S101 (the rows are given once)
            certification, rows_checked = _certify_data(
                opened, reading.open(data, opened.manifest.inputs), edge, tiers, contract=contract, terms=terms
            )
        written = _write(opened, certification, out, force=force)
        result, report = certification.result, _report(certification, written, rows_checked, plain=contract.plain)
    return report._replace(exit_code=EXIT_FAILED) if require and not result.certified else report


def _check_sources(bundle: Path | None, data: Path | None, scores: str | None) -> None:
    """Raises ConfigError unless the rows are given once, and the bundle that data is for."""
    if data is not None and scores is not None:
        raise ConfigError("--data and --scores both give the rows; leave one of them out.")
    if data is None and scores is None:
        raise ConfigError(
            "The data is missing: add --data FOLDER, or --scores FILE with the table that `edge-agent audit list` "
            "prints on the device."
        )
    if scores is None and bundle is None:
        raise ConfigError("The bundle is missing: name the folder of the bundle that --data is for.")


def _write(bundle: Bundle, certification: Certification, out: Path | None, *, force: bool) -> str:
    """Writes the certified bundle and returns what was written; "" if there is nothing or no folder to write."""
    if out is None or certification.certificate is None:
        return ""
    made = write_certified(bundle, certification, out, force=force)
    return f"{out}: {made.manifest.name} version {made.manifest.version}, {certification.variant.id} certified."


def _prepare(
    contract: ContractOptions, bundle: Path | None, out: Path | None, terms: Terms, *, audited: bool, force: bool
) -> tuple[Bundle | None, Terms]:
    """Opens the bundle and checks the terms, before the models run for minutes.

    The terms of a bundle whose promises about events are to be renewed by its audits are in its certificate.
    """
    opened = open_bundle(require_bundle(bundle)) if bundle is not None else None
    shares: dict[str, float] = {}
    states_nothing = contract.epsilon is None and contract.delta is None
    renews_events = audited and states_nothing and opened is not None and _promises_events(opened)
    if contract.promise and opened is not None:
        terms = terms.about(parse_promises(contract.promise, opened.manifest.task))
    elif contract.epsilon is not None and contract.delta is not None:
        shares = {"--epsilon": terms.epsilon, "--delta": terms.delta}
        if opened is not None:
            require_event(opened.manifest)
    elif not renews_events:
        missing = [name for name in ("--epsilon", "--delta") if getattr(contract, name[2:]) is None]
        fault = f"{missing[0]} is missing. " if len(missing) == 1 else ""
        raise ConfigError(f"{fault}Name --epsilon and --delta, or a promise about an event with --promise.")
    for name, share in (shares | {"the selection fraction": terms.select_fraction or 0.5}).items():
        check_share(name, share)
    if out is not None and opened is not None:
        refuse_overwriting(out, force)
    return opened, terms


def _promises_events(bundle: Bundle) -> bool:
    certificates = (valid_certificate(bundle.manifest, variant) for variant in bundle.manifest.edge)
    return any(certificate is not None and certificate.events for certificate in certificates)


def _certify_data(
    bundle: Bundle, dataset: Dataset, edge: str, tiers: TierOptions, *, contract: ContractOptions, terms: Terms
) -> tuple[Certification, dict[str, int]]:
    """Runs the models on a data folder; returns what the rows prove, and how many were checked for independence."""
    if contract.needs_labels:
        task = bundle.manifest.task
        require_labels(task, dataset.required_truth(task, bundle.manifest.inputs), str(dataset.path))
    fraction = terms.select_fraction
    if fraction is None:
        fraction = selection.SELECT_FRACTION if contract.promise else selection.default_fraction(len(dataset))
    variants = [model for model in bundle.manifest.edge if edge in ("", model.id)]
    logits = tiers.from_agent is None and any(model.shows_logits for model in variants)
    selection.check_score(bundle.manifest.task, terms.score, fraction, logits=logits)
    groups = read_groups(contract.groups, dataset) if contract.groups is not None else []
    rows_checked = require_independent_rows(bundle, [*variants, *filter(None, [bundle.manifest.full])], dataset)
    evidence = tiers.gather(bundle, dataset, edge)
    certification = contract.certify(bundle, evidence, groups, terms)
    _warn(bundle.manifest, certification, learnable=terms.score in (selection.BEST, selection.LEARNED))
    return certification, rows_checked


def _certify_scores(source: str, terms: Terms) -> tuple[CertificationResult, Report]:
    """Certifies a table of scores without a bundle; returns the result and its report."""
    table = read_score_table(source)
    result = certify_weighted(
        table.scores,
        table.losses,
        table.weights,
        terms.epsilon,
        terms.delta,
        select_fraction=terms.select_fraction or 0.0,
        seed=terms.seed,
    )
    return result, Report(asdict(result), edge_sentence(result, terms, graded=selection.is_graded(table.losses)))


def _certify_audits(
    source: str, bundle: Bundle, contract: ContractOptions, terms: Terms
) -> tuple[Certification, dict[str, int]]:
    """Certifies a bundle by the audits of a device; also returns how many random rows each model was checked with."""
    audits = read_score_table(source, bundle.manifest.task.events)
    rows_checked = require_independent_rows(bundle, bundle.manifest.models)
    certified = certify_field if contract.plain and contract.epsilon is not None else certify_field_promises
    return certified(bundle, audits, terms), rows_checked


def _warn(manifest: Manifest, certification: Certification, *, learnable: bool) -> None:
    if learnable and certification.selection.used and not selection.can_learn():
        warn("scikit-learn is not installed, so no score was learned: pip install 'firstline[analysis]'.")
    if certification.certificate is not None and (lost := voided(manifest, certification)):
        warn(f"The score changes: certificates of {', '.join(lost)} are void; renew them with --score bundle.")


def _report(certification: Certification, written: str, rows_checked: dict[str, int], *, plain: bool) -> Report:
    result, selected, text = certification.result, certification.selection, list[str | Table]()
    value = asdict(result)
    if isinstance(result, EventsResult):
        value |= {"unpromised": certification.unpromised, "broken": certification.broken}
        text += promises_text(result, certification.unpromised, certification.broken)
    else:
        sentence = edge_sentence if plain else other_contract_sentence
        text += [sentence(result, certification.terms, graded=certification.graded), *groups_text(result)]
    value |= {
        "score": selected.score.kind,
        "temperature": selected.score.temperature,
        "selected": selected.used,
        "auroc": selected.aurocs,
        "rows_checked": rows_checked,
        "sequences": certification.sequences,
        "usual_answer": certification.usual,
    }
    text += caveats(certification)
    if selected.used:
        text.append(selection_sentence(selected))
    text.append(rows_checked_sentence(rows_checked))
    advice = "; name one with --out" if result.certified else ""
    text.append(written or f"No bundle was written{advice}.")
    return Report(value, text)


def edge_sentence(result: CertificationResult, terms: Terms, *, graded: bool) -> str:
    """Returns what is proved of all accepted edge answers together."""
    needed = (
        f"Some threshold would have to accept at least {counted(result.n_needed, 'more row')} without a single error."
    )
    return _threshold_sentence(result, terms.promise(graded=graded), needed, "their risk", percent)


def other_contract_sentence(result: CertificationResult, terms: Terms, *, graded: bool) -> str:
    """Returns what is proved of the whole stream, or of each group."""
    if isinstance(result, GroupsResult):
        certified = sum(group.certified for group in result.groups.values())
        share = f"That accepts {percent(result.kept)} of all." if certified else "Escalate everything."
        return (
            f"Certified {certified} of {len(result.groups)} by {result.by} on {result.n} rows: in each, "
            f"{terms.promise(graded=graded)} for all of them together. {share}"
        )
    promise = promise_text("stream", terms.epsilon, terms.delta, graded=graded)
    needed = f"At least {counted(result.n_needed, 'more row')} would be needed."
    return _threshold_sentence(result, promise, needed, "the accuracy given up", points)


def _threshold_sentence(
    result: CertificationResult, promise: str, needed: str, bounded: str, in_words: Callable[[float], str]
) -> str:
    """Returns the threshold at which a promise is proved, and the upper bound; without a proof, the data it needs."""
    if result.threshold is None or result.risk_upper is None:
        return f"Not certified on {result.n} rows that {promise}; escalate everything. {needed}"
    return (
        f"Certified on {result.n} rows: {promise}, when an edge answer is accepted at a score of at least "
        f"{result.threshold:.15g}. That accepts {percent(result.kept)}; the upper bound of {bounded} is "
        f"{in_words(result.risk_upper)}."
    )


def groups_text(result: CertificationResult) -> Iterator[str | Table]:
    """Yields a table with a line for each group; of the groups that are not certified, only those closest to it."""
    if not isinstance(result, GroupsResult):
        return
    uncertified = sorted((group.n_needed, name) for name, group in result.groups.items() if not group.certified)
    hidden = {name for _, name in uncertified[_UNCERTIFIED_SHOWN:]}
    rows = (
        (
            name,
            str(group.n),
            "-" if group.threshold is None else f"{group.threshold:.6g}",
            f"{100 * group.kept:.2f}",
            "-" if group.risk_upper is None else f"{100 * group.risk_upper:.3f}",
            str(group.n_needed or ""),
        )
        for name, group in result.groups.items()
        if name not in hidden
    )
    columns = (result.by, ">rows", ">threshold", ">accepted %", ">risk at most %", ">accepted rows missing, at least")
    yield table(*columns, rows=rows)
    if hidden:
        yield f"Nothing is proved of {len(hidden)} more, which miss more accepted rows; -o json has them all."


def selection_sentence(selected: selection.Selection) -> str:
    """Returns which score the rows that were set aside have chosen."""
    best_first = sorted(selected.aurocs.items(), key=lambda item: -item[1])
    compared = ", ".join(f"{name} {area:.3f}" for name, area in best_first) or "too few losses to compare scores"
    # A learned score does not look at the temperature.
    score = selected.score
    temperature = "" if score.learned is not None else f" at temperature {score.temperature:g}"
    return f"{counted(selected.used, 'other row')} decided on the score: {score.kind}{temperature} (AUROC: {compared})."
