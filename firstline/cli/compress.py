"""`firstline compress`: makes smaller and faster variants, and keeps those that measurement shows to be better."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import (
    DATA_HELP,
    PROMISE_EXAMPLE,
    BundleArgument,
    DataReading,
    GatewayOptions,
    LimitOption,
    ThreadsOption,
    require_bundle,
)
from firstline.cli.output import confidence, percent, progress, rows_checked_sentence, size, table, warn
from firstline_core.errors import ConfigError
from firstline_core.storage.files import system_reason

if TYPE_CHECKING:
    from rich.table import Table

    from firstline.cli.profile_source import load_profile
    from firstline.cli.promises import caveats
    from firstline.cli.work_folder import work_folder
    from firstline.workbench.bundle import refuse_existing, require_writable
    from firstline.workbench.certify import Terms
    from firstline.workbench.compress.candidates import Candidate
    from firstline.workbench.compress.compression import Compression, Rule, compress, promise_of, source_of
    from firstline.workbench.compress.costs import Target
    from firstline.workbench.compress.judge import Figures
    from firstline.workbench.compress.next_version import Preference, next_version, write_compressed
    from firstline.workbench.compress.student import Lesson, require_training, start_of
    from firstline.workbench.promises import parse_promises
    from firstline_core.bundle.manifest import Manifest, Model
    from firstline_core.bundle.store import open_bundle
    from firstline_core.hardware.readings import Absent, Modelled, Reading
    from firstline_core.profile.summary import DISTURBED
    from firstline_core.routing.certification import check_share
    from firstline_core.runtime.select import RuntimeOptions

app = command_group()


@dataclass(frozen=True, slots=True)
class StudentOptions:
    """The student, if one is trained."""

    train: Annotated[
        int | None,
        typer.Option(min=1, help="With --student: train it for this many epochs. Up to an hour; needs PyTorch."),
    ] = None
    student: Annotated[
        str, typer.Option(metavar="ID", help="Also train this smaller model of the bundle on the source's answers.")
    ] = ""
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --train: save the training here after each epoch; the same command resumes it."
        ),
    ] = None

    def lesson(self, threads: int) -> Lesson | None:
        """Returns how a student is trained; None for no student. Makes the folder of checkpoints.

        Raises:
            ConfigError: an option is missing, or the folder cannot be made.
        """
        if self.student and not self.train:
            raise ConfigError(f"--student {self.student} names a student; --train says for how many epochs.")
        if self.train and not self.student:
            raise ConfigError("--train trains a student; --student names the model of the bundle that it starts as.")
        if self.checkpoints is not None:
            if not self.train:
                raise ConfigError("--checkpoints saves a training; --train says for how many epochs.")
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"{self.checkpoints} cannot hold checkpoints: {system_reason(error)}.") from error
        return Lesson(self.student, self.train, threads) if self.train else None


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """The requirements for a candidate."""

    max_loss_points: Annotated[
        float, typer.Option(min=0, max=100, help="Points of accuracy that a candidate may lose.")
    ] = 2.0
    confidence: Annotated[
        float | None,
        typer.Option(
            help="Require a proof with this confidence that no more is lost, e.g. 0.95. Default: the loss on the "
            "judging images decides, and its upper bound is shown."
        ),
    ] = None
    epsilon: Annotated[
        float | None, typer.Option(help="Of the certificates. Default: that of the first variant, else 0.05.")
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="Of the certificates. Default: that of the first variant, else 0.05.")
    ] = None
    promise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help=f"Instead of --epsilon and --delta: a promise about an event, such as '{PROMISE_EXAMPLE}'; may be "
            "repeated. "
            "Default: those of the first variant.",
        ),
    ] = None

    def rule(self, manifest: Manifest) -> Rule:
        """Returns the rule for candidates of a bundle.

        Raises:
            ConfigError: a share out of range, or an option is missing or too many; see `promise_of`.
        """
        if self.promise and not (self.epsilon is None and self.delta is None):
            raise ConfigError(
                "--promise names the event, its share and the confidence; leave out --epsilon and --delta."
            )
        events = parse_promises(self.promise or (), manifest.task)
        promise = promise_of(manifest, self.epsilon, self.delta, events)
        shares = {"epsilon": promise.epsilon, "delta": promise.delta, "confidence": self.confidence}
        for name, share in shares.items():
            if share is not None:
                check_share(name, share)
        return Rule(promise, self.max_loss_points / 100, self.confidence)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The model to compress, the target machine, and how the models run."""

    of: Annotated[
        str, typer.Option(help="Model by id. Default: the first edge variant in fp32, else the full model.")
    ] = ""
    for_: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PROFILE",
            help="Profile of the target machine, for latency and energy: a file; or stored by the gateway: MACHINE "
            "(its latest of this bundle), BUNDLE/VERSION/MACHINE. Default: this machine.",
        ),
    ] = ""
    limit: LimitOption = None
    threads: ThreadsOption = 1
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split of the data.")] = 0


@dataclass(frozen=True, slots=True)
class OutOptions:
    """The next version of the bundle."""

    prefer: Annotated[
        Literal["kept", "latency", "size", "energy"],
        typer.Option(help="Order of the variants: a device takes the first that it can load. Energy needs --for."),
    ] = "kept"
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the next version, if a candidate is taken; without it none is written."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Take refused candidates too.")] = False


@command(app, "compress", example="firstline compress digits --data digits/test --for press-7 --out digits-next")
def compress_command(
    bundle: BundleArgument,
    *,
    data: Annotated[
        Path,
        typer.Option(help=f"Labelled data that no model was trained on. {DATA_HELP}"),
    ],
    reading: DataReading,
    run: RunOptions,
    rules: RuleOptions,
    student: StudentOptions,
    next_: OutOptions,
    gateway: GatewayOptions,
) -> Report:
    """Make variants by static and dynamic int8, fp16 and int8 weights, and keep those that are better.

    Half of the data makes the candidates, a fifth judges them, the rest certifies them. Latency is measured on this
    machine, in turns with the existing models; with --for, in each model's fastest way there, and energy too. For
    another machine only the points of its profile count. A candidate that is not better is refused, with the numbers;
    the exit code is 0 all the same.
    """
    opened, prefer = open_bundle(require_bundle(bundle)), Preference(next_.prefer)
    if next_.out is not None:
        refuse_existing(next_.out)  # before the models run for minutes
        require_writable(next_.out)
    source, rule, lesson = source_of(opened.manifest, run.of), rules.rule(opened.manifest), student.lesson(run.threads)
    if lesson is not None:
        start_of(opened.manifest, source, lesson.start)
        require_training()
    if next_.prefer == "energy" and not run.for_:
        raise ConfigError("--prefer energy orders by measured energy, which needs --for PROFILE.")
    profile = load_profile(run.for_, opened.manifest.name, gateway) if run.for_ else None
    dataset, options = reading.open(data, opened.manifest.inputs, run.limit), RuntimeOptions(threads=run.threads)
    with work_folder() as folder, progress("Compressing") as on_progress:
        found = compress(
            opened,
            dataset,
            folder,
            source=source,
            rule=rule,
            profile=profile,
            lesson=lesson,
            seed=run.seed,
            checkpoints=student.checkpoints,
            options=options,
            report=lambda step: typer.echo(f"{step} ...", err=True),
            progress=on_progress,
        )
        judged = [one for one in found.candidates if one.model and one.verdict]
        refused = [one for one in judged if one.verdict and not one.verdict.accepted]
        taken = [one.model.id for one in judged if one.model and (next_.force or one not in refused)]
        after = next_version(opened.manifest, found, taken, prefer) if taken else None
        written = write_compressed(opened, after, folder, next_.out, options) if after and next_.out else None
    if next_.force and refused:
        warn(f"--force takes {len(refused)} that the rule refuses.")

    def text() -> Iterator[str | Table]:
        yield from found_text(found)
        if after is not None:
            yield from order_text(after.edge, taken, prefer)
        if written is not None:
            order, manifest = ", ".join(model.id for model in written.manifest.edge), written.manifest
            yield f"{written.path}: {manifest.name} version {manifest.version}; edge variants in order: {order}."
        else:
            yield f"No bundle was written{'; name one with --out' if taken else ': no candidate was taken'}."

    return Report(as_json(found, taken, after, written.manifest.version if written else None), text())


def as_json(found: Compression, taken: list[str], after: Manifest | None, version: int | None) -> dict[str, object]:
    """Returns the result as a JSON object.

    Args:
        found: the result.
        taken: ids of the candidates that are taken.
        after: the next version's manifest, if something is taken.
        version: its number, if it was written.
    """
    return {
        "source": found.source.id,
        "target": found.target,
        "waited_share": found.waited_share,
        "promise": _promise(found.rule.promise),
        "sequences": next((one.sequences for one in found.certifications.values()), None),
        "max_loss": found.rule.max_loss,
        "loss_delta": found.rule.loss_delta,
        "loss_proved": found.rule.confidence is not None,
        "rows": dict(zip(("make", "judge", "certify"), found.rows, strict=True)),
        "rows_checked": found.rows_checked,
        "there": found.existing,
        "unmeasured": found.unmeasured,
        "certified_accuracy": found.certified_accuracy,
        "candidates": [
            {
                "id": one.model.id if one.model is not None else None,
                "technique": one.technique,
                "batch": one.model.batch if one.model is not None else None,
                "figures": one.figures,
                "accepted": one.verdict is not None and one.verdict.accepted,
                "reasons": _reasons(found, one),
                "times_better": one.verdict.times_better if one.verdict is not None else {},
                "provenance": one.model.provenance if one.model is not None else None,
            }
            for one in found.candidates
        ],
        "taken": taken,
        "order": [model.id for model in after.edge] if after is not None else None,
        "version": version,
    }


def _promise(terms: Terms) -> dict[str, object]:
    contract = "events" if terms.events else terms.contract
    return {"epsilon": terms.epsilon, "delta": terms.delta, "contract": contract, "events": terms.events}


def found_text(found: Compression) -> Iterator[str | Table]:
    """Yields the figures of all models, and the verdict on each candidate with its reasons."""
    make, judge, certify = found.rows
    promise = found.rule.promise.promise(graded=any(one.graded for one in found.certifications.values()))
    yield (
        f"Made of {found.source.id} on {make} rows, judged on {judge}, certified on {certify}: {promise}.\n"
        f"Points lost are against {found.source.id} on the judging rows: as seen, and at most, with confidence "
        f"{confidence(found.rule.loss_delta)} for all candidates together; "
        f"{'the most' if found.rule.confidence is not None else 'what was seen'} decides."
    )
    for certification in [*found.certifications.values()][:1]:  # all of them are about the same rows
        yield from caveats(certification)
    yield rows_checked_sentence(found.rows_checked)
    costs = (">p50 ms", *((">mJ", "on") if found.target is not None else ()), ">bytes")
    rows = [(*_row(figures, found), "there") for figures in found.existing]
    rows += [(*_row(one.figures, found), _verdict(one)) for one in found.candidates if one.figures]
    yield table("model", ">accuracy", ">points lost", ">at most", ">on new rows", *costs, ">kept", "verdict", rows=rows)
    if found.target is not None:
        yield _of_target(found, found.target)
    yield from (f"{name} is not compared: {why.removesuffix('.')}." for name, why in found.unmeasured.items())
    for one in found.candidates:
        name = one.model.id if one.model is not None else one.technique
        reasons = "; ".join(reason.removesuffix(".") for reason in _reasons(found, one))
        yield f"{name} is {_verdict(one)}: {reasons}."
        if one.model is not None and one.model.batch is not None:
            yield f"{name} runs with one row at a time, because its answer depends on the other rows of a batch."


def order_text(edge: Sequence[Model], taken: Collection[str], prefer: Preference) -> Iterator[str]:
    """Says for each taken variant that is not the first one which devices do not get it."""
    names = [model.id for model in edge]
    others = ", ".join(one for one in Preference if one is not prefer)
    for position, name in enumerate(names):
        if name in taken and position > 0:
            yield (
                f"{name} comes after {', '.join(names[:position])}: a device takes the first that it can load, and "
                f"the others only if it adapts. The order is by {prefer}; --prefer names another ({others})."
            )


def _reasons(found: Compression, one: Candidate) -> tuple[str, ...]:
    if one.verdict is None:
        return (one.failed,)
    on_target = " and runs there" if found.unmeasured else ""
    return one.verdict.reasons or (f"nothing that is there is as accurate{on_target}",)


def _verdict(one: Candidate) -> str:
    if one.verdict is None:
        return "not made" if one.model is None else "not judged"
    return "accepted" if one.verdict.accepted else "refused"


def _row(figures: Figures, found: Compression) -> tuple[str, ...]:
    kept = "-" if figures.kept is None else percent(figures.kept)
    on_target = (_energy(figures.energy_mj), figures.ran) if found.target is not None else ()
    lost = (
        ("-", "-")
        if figures.loss is None
        else [f"{100 * one:.2f}" for one in (figures.loss.seen, figures.loss.at_most)]
    )
    accuracies = percent(figures.accuracy), *lost, percent(found.certified_accuracy[figures.id])
    return figures.id, *accuracies, _milliseconds(figures), *on_target, size(figures.size_bytes), kept


def _milliseconds(figures: Figures) -> str:
    """With a question mark if other work disturbed it."""
    if figures.latency_ms is None:
        return "-"
    return f"{figures.latency_ms:.4g}{'' if figures.latency_known else ' ?'}"


def _energy(reading: Reading | None) -> str:
    if reading is None or isinstance(reading, Absent):
        return "absent"
    return f"{reading.value:.3g}{' (modelled)' if isinstance(reading, Modelled) else ''}"


def _of_target(found: Compression, target: Target) -> str:
    """The source of latency and energy."""
    sentences = [
        f"Latency is of '{target.machine}', "
        + ("measured now, in turns, each model in its best way." if target.here else "as its profile has it.")
    ]
    measured = [*found.existing, *(one.figures for one in found.candidates if one.figures is not None)]
    energy = next((one.energy_mj for one in measured if one.energy_mj is not None), None)
    if isinstance(energy, Absent):
        sentences.append(f"Energy is absent: {energy.reason}")
    elif energy is not None:
        sentences.append(f"Energy is {type(energy).__name__.lower()}: {energy.source}.")
    if found.waited_share > DISTURBED:
        sentences.append(
            f"Other work had the core for up to {percent(round(found.waited_share, 2))} of a measurement; what waited "
            f"for more than {percent(DISTURBED)} is marked ?, and does not count."
        )
    return " ".join(sentences)
