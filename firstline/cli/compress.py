"""`firstline compress`: makes smaller and faster variants, and keeps those that measurement shows to be better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import (
    DATA_HELP,
    BundleArgument,
    DataReading,
    GatewayOptions,
    LimitOption,
    ThreadsOption,
    require_bundle,
)
from firstline.cli.output import percent, progress, rows_checked_sentence, size, table, warn
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import rounded

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table

    from firstline.cli.profile_source import load_profile
    from firstline.cli.proof_text import caveats
    from firstline.cli.work_folder import work_folder
    from firstline.workbench.bundle import refuse_existing, require_writable, write_version
    from firstline.workbench.compress.candidates import Candidate
    from firstline.workbench.compress.compression import (
        Compression,
        Rule,
        compress,
        next_version,
        promise_of,
        source_of,
    )
    from firstline.workbench.compress.judge import Figures
    from firstline.workbench.compress.student import Lesson, require_training, start_of
    from firstline.workbench.event_promises import parse_promises
    from firstline_core.bundle.manifest import Manifest
    from firstline_core.bundle.store import Bundle, open_bundle
    from firstline_core.hardware.readings import short
    from firstline_core.routing.certification import check_share
    from firstline_core.runtime.select import RuntimeOptions

app = command_group()


@dataclass(frozen=True, slots=True)
class StudentOptions:
    """The student, if one is trained.

    Attributes:
        train: With --student: train it for this many epochs. Up to an hour; needs PyTorch.
        student: Also train this smaller model of the bundle on the source's answers.
    """

    train: Annotated[int | None, typer.Option(min=1)] = None
    student: Annotated[str, typer.Option(metavar="ID")] = ""

    def lesson(self, threads: int) -> Lesson | None:
        """Returns how a student is trained; None for no student.

        Raises:
            ConfigError: an option is missing.
        """
        if self.student and not self.train:
            raise ConfigError(f"--student {self.student} needs --train; add --train EPOCHS, such as --train 10.")
        if self.train and not self.student:
            raise ConfigError(
                "--train needs --student; add --student MODEL, the model of the bundle that training starts from."
            )
        return Lesson(self.student, self.train, threads) if self.train else None


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """The requirements for a candidate.

    Attributes:
        max_loss_points: Points of accuracy that a candidate may lose.
        epsilon: Of the certificates. Default: that of the first variant, else 0.05.
        delta: Of the certificates. Default: that of the first variant, else 0.05.
        promise: Instead of --epsilon and --delta: a promise about an event, such as 'missed person 5% at 90%'; may be
            repeated. Default: those of the first variant.
    """

    max_loss_points: Annotated[float, typer.Option(min=0, max=100)] = 2.0
    epsilon: float | None = None
    delta: float | None = None
    promise: Annotated[list[str] | None, typer.Option(metavar="TEXT")] = None

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
        check_share("--epsilon", promise.epsilon)
        check_share("--delta", promise.delta)
        return Rule(promise, self.max_loss_points / 100)


@command(app, "compress", example="firstline compress digits --data digits/test --out digits-next")
def compress_command(
    bundle: BundleArgument,
    *,
    data: Annotated[Path, typer.Option(help=f"Labelled data that no model was trained on. {DATA_HELP}")],
    reading: DataReading,
    of: str = "",
    for_: Annotated[str, typer.Option("--for", metavar="PROFILE")] = "",
    limit: LimitOption = None,
    threads: ThreadsOption = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    rules: RuleOptions,
    student: StudentOptions,
    out: Path | None = None,
    force: bool = False,
    gateway: GatewayOptions,
) -> Report:
    """Make variants by static and dynamic int8, fp16 and int8 weights, and keep those that are better.

    Half of the data makes the candidates, a fifth judges them, the rest certifies them. Latency is measured on this
    machine, in turns with the existing models; with --for, the points of its profile count, energy too. A candidate
    that is not better is refused, with the numbers; the exit code is 0 nevertheless.

    Args:
        of: Model by id. Default: the first edge variant in fp32, else the full model.
        for_: Profile of the target machine, for latency and energy: a file, or BUNDLE/VERSION/MACHINE on the gateway.
            Default: latency on this machine.
        seed: Seed of the split of the data.
        out: Folder of the next version, if a candidate is taken; without it none is written.
        force: Take refused candidates too.
    """
    opened = open_bundle(require_bundle(bundle))
    if out is not None:
        refuse_existing(out)  # before the models run for minutes
        require_writable(out)
    source, rule, lesson = source_of(opened.manifest, of), rules.rule(opened.manifest), student.lesson(threads)
    if lesson is not None:
        start_of(opened.manifest, source, lesson.start)
        require_training()
    profile = load_profile(for_, gateway) if for_ else None
    dataset, options = reading.open(data, opened.manifest.inputs, limit), RuntimeOptions(threads=threads)
    with work_folder() as folder, progress("Compressing") as on_progress:
        found = compress(
            opened,
            dataset,
            folder,
            source=source,
            rule=rule,
            lesson=lesson,
            profile=profile,
            seed=seed,
            options=options,
            report=lambda step: typer.echo(f"{step} ...", err=True),
            progress=on_progress,
        )
        refused = [one for one in found.candidates if one.verdict and not one.verdict.accepted]
        taken = [
            one.model.id for one in found.candidates if one.model and one.verdict and (force or one.verdict.accepted)
        ]
        after = next_version(opened.manifest, found, taken) if taken else None
        made = Bundle(folder, opened.manifest)
        written = write_version(made, after, out, answer_with=options) if after and out else None
    if force and refused:
        warn(f"--force takes {len(refused)} that the rule refuses.")
    version = written.manifest.version if written is not None else None
    task = opened.manifest.task
    figure = task.quality if task.higher_is_better else "1 - loss"
    text = _text(found, figure, taken, after, out if written else None)
    return Report(_as_json(found, taken, after, version), text)


def _as_json(found: Compression, taken: list[str], after: Manifest | None, version: int | None) -> dict[str, object]:
    """Returns the result as a JSON object.

    Args:
        found: the result.
        taken: ids of the candidates that are taken.
        after: the next version's manifest, if something is taken.
        version: its number, if it was written.
    """
    terms = found.rule.promise
    return {
        "source": found.source.id,
        "target": found.target,
        "promise": {
            "epsilon": terms.epsilon,
            "delta": terms.delta,
            "contract": "events" if terms.events else terms.contract,
            "events": terms.events,
        },
        "sequences": next((one.sequences for one in found.certifications.values()), None),
        "max_loss": found.rule.max_loss,
        "rows": dict(zip(("make", "judge", "certify"), found.rows, strict=True)),
        "rows_checked": found.rows_checked,
        "there": found.existing,
        "certified_accuracy": found.certified_accuracy,
        "candidates": [
            {
                "id": one.model.id if one.model is not None else None,
                "technique": one.technique,
                "batch": one.model.batch if one.model is not None else None,
                "figures": one.figures,
                "accepted": one.verdict is not None and one.verdict.accepted,
                "reasons": _reasons(found, one),
                "provenance": one.model.provenance if one.model is not None else None,
            }
            for one in found.candidates
        ],
        "taken": taken,
        "order": [model.id for model in after.edge] if after is not None else None,
        "version": version,
    }


def _text(
    found: Compression, figure: str, taken: list[str], after: Manifest | None, written: Path | None
) -> Iterator[str | Table]:
    """Yields the figures of all models, the verdict on each candidate with its reasons, and what was written."""
    make, judge, certify = found.rows
    promise = found.rule.promise.promise(graded=any(one.graded for one in found.certifications.values()))
    yield f"Made of {found.source.id} on {make} rows, judged on {judge}, certified on {certify}: {promise}."
    for certification in [*found.certifications.values()][:1]:  # all of them are about the same rows
        yield from caveats(certification)
    yield rows_checked_sentence(found.rows_checked)
    rows = [(*_row(figures, found), "there") for figures in found.existing]
    rows += [(*_row(one.figures, found), _verdict(one)) for one in found.candidates if one.figures]
    columns = ("model", f">{figure}", ">on new rows", ">p50 ms", *([">mJ"] if found.target else []), ">bytes", ">kept")
    yield table(*columns, "verdict", rows=rows)
    if found.target:
        unmeasured = [one.id for one in found.existing if one.latency_ms is None]
        absent = f" It has no point of {', '.join(unmeasured)}, so these are not compared." if unmeasured else ""
        yield f"Latency and energy are those of the profile of '{found.target}'.{absent}"
    for one in found.candidates:
        name = one.model.id if one.model is not None else one.technique
        yield f"{name} is {_verdict(one)}: {'; '.join(reason.removesuffix('.') for reason in _reasons(found, one))}."
        if one.model is not None and one.model.batch is not None:
            yield f"{name} runs with one row at a time, because its answer depends on the other rows of a batch."
    names = [model.id for model in after.edge] if after is not None else []
    for position, name in enumerate(names):
        if name in taken and position > 0:
            yield (
                f"{name} comes after {', '.join(names[:position])}: a device takes the first that it can load, and "
                "the others only if it adapts."
            )
    if after is not None and written is not None:
        yield f"{written}: {after.name} version {after.version}; edge variants in order: {', '.join(names)}."
    else:
        yield f"No bundle was written{'; name one with --out' if taken else ': no candidate was taken'}."


def _reasons(found: Compression, one: Candidate) -> tuple[str, ...]:
    if one.verdict is None:
        return (one.failed,)
    nothing = (
        f"no model that ran on '{found.target}' is as accurate" if found.target else "no existing model is as accurate"
    )
    return one.verdict.reasons or (nothing,)


def _verdict(one: Candidate) -> str:
    if one.verdict is None:
        return "not made" if one.model is None else "not judged"
    return "accepted" if one.verdict.accepted else "refused"


def _row(figures: Figures, found: Compression) -> tuple[str, ...]:
    edge_share = "-" if figures.kept is None else percent(figures.kept)
    accuracies = percent(figures.accuracy), percent(found.certified_accuracy[figures.id])
    energy = ["absent" if figures.energy_mj is None else short(figures.energy_mj)] if found.target else []
    disturbed = "" if figures.known_ms is not None else "?"
    latency = "-" if figures.latency_ms is None else f"{rounded(figures.latency_ms)}{disturbed}"
    return figures.id, *accuracies, latency, *energy, size(figures.size_bytes), edge_share
