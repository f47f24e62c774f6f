"""`firstline pair`: from two model files and data to a certified bundle, and if asked to running tiers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group, print_report
from firstline.cli.options import DataReading, PortOption, ThreadsOption
from firstline.cli.output import Output, OutputOption, progress, warn
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.cli.proof_text import caveats, promises_text
    from firstline.cli.serving import serve
    from firstline.workbench.bundle import refuse_overwriting, require_writable, write_version
    from firstline.workbench.certify import Certification, write_certified
    from firstline.workbench.evaluate import Measured, measure
    from firstline.workbench.pairing.certifying import as_certified, certify_pair
    from firstline.workbench.pairing.pair import (
        draft_of,
        label_lists,
        larger_edge,
        read_files,
        read_pair,
        refuse_other_folder,
        split,
    )
    from firstline.workbench.pairing.report import PairReport, draw_disagreements, report_of, summary_lines
    from firstline.workbench.pairing.sources import open_data
    from firstline.workbench.pairing.specification import BUNDLE, EDGE, FULL, PairSpec
    from firstline.workbench.spec import read_labels
    from firstline_core.routing.contracts import EventsResult
    from firstline_core.runtime.select import RuntimeOptions

app = command_group()


@dataclass(frozen=True, slots=True)
class PairDecisions:
    """Properties that the user names, and that files and data need not decide.

    Attributes:
        promise: What to certify, such as 'missed person 5% at 90%', which may be repeated, or '2% at 95%' of
            disagreement. Default: 5% at 90% of disagreement, or of missing what the full model reports most often.
        labels: Text file, one label a line; found in or near the models by default.
        tolerance: Of models that answer with numbers: 2.5, 5% of the value, or 0.25sd of the row's deviation. Default:
            the full model's median error on labelled data.
        choose: Number on a contact sheet, for each question in its order.
    """

    promise: Annotated[list[str] | None, typer.Option(metavar="TEXT")] = None
    labels: Path | None = None
    tolerance: str = ""
    choose: Annotated[list[str] | None, typer.Option(metavar="edge|full=N")] = None

    def spec(self, files: dict[str, Path], out: Path, name: str) -> PairSpec:
        """Returns the parts of the pair.

        Raises:
            ConfigError: the labels cannot be read, or a choice is not in its form.
        """
        return PairSpec(
            files,
            out,
            name,
            labels=read_labels(self.labels) if self.labels is not None else (),
            chosen=_chosen(self.choose or (), files),
            promises=self.promise or (),
            tolerance=self.tolerance,
        )


@command(app, "pair", example="firstline pair --edge edge.onnx --full full.onnx --data digits/test")
def pair_command(
    *,
    reading: DataReading,
    decisions: PairDecisions,
    edge: Path | None = None,
    full: Path | None = None,
    data: Path,
    out: Path = Path("pair"),
    name: str = "",
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    threads: ThreadsOption = 1,
    force: bool = False,
    require: bool = False,
    serve_it: Annotated[bool, typer.Option("--serve")] = False,
    port: PortOption = 0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a bundle from an edge model, a full model and data: recognise, compare, certify and report.

    Both models' families are recognised. The data decides the properties that the files leave open; if it cannot, a
    contact sheet shows the possible decodings and --choose picks one. An edge model that does not fit the full model is
    refused. One model alone becomes a bundle of one tier.

    Args:
        edge: Edge model, .onnx or .tflite.
        full: Full model, .onnx or .tflite.
        data: Data of the kind that will be asked, with or without labels.
        out: Folder for recipe, labels, bundle and pictures.
        name: Name of the bundle; derived from the files by default.
        limit: Use this many samples, spread evenly.
        force: Replace the bundle in the output folder.
        require: Exit with 1 if nothing is certified.
        serve_it: Serve the bundle afterwards, as firstline run does.
    """
    files = {role: file for role, file in ((EDGE, edge), (FULL, full)) if file is not None}
    if not files:
        raise ConfigError("No model is named. Name --edge FILE, --full FILE or both.")
    if decisions.promise and len(files) < 2:
        absent = FULL if edge is not None else EDGE
        raise ConfigError(
            f"--promise compares an edge model with a full one; name --{absent} FILE too, or leave --promise out."
        )
    spec = decisions.spec(files, out, name)
    options = RuntimeOptions(threads=threads)
    refuse_other_folder(out)
    refuse_overwriting(out / BUNDLE, force)
    require_writable(out / BUNDLE)
    models = read_files(spec, options)
    if larger_edge(spec):
        warn("The edge model's file is larger than the full model's; exchange --edge and --full if they are swapped.")
    dataset = open_data(
        data,
        lambda path: reading.open(path, (spec for file in models.values() for spec in file.inputs), limit),
        models,
        lists=label_lists(spec, models, data),
        out=out,
        show=_show,
    )
    deciding, rest = split(dataset)
    pair = read_pair(spec, models, deciding, options, _show)
    certification = None
    with draft_of(spec, pair, options, warn) as draft:
        with progress("Running both models" if len(files) > 1 else "Running the model") as bar:
            measured = measure(draft, rest, options=options, progress=bar, all_evidence=True)
        if len(files) > 1:
            certification = certify_pair(draft, measured, pair.promises)
            measured = as_certified(measured, certification)
        if certification is not None and certification.certificate is not None:
            bundle = write_certified(draft, certification, out / BUNDLE, force=force)
        else:
            bundle = write_version(draft, draft.manifest, out / BUNDLE, force=force)
    report = report_of(pair, measured, certification, out / BUNDLE, warn)
    draw_disagreements(measured, out / "disagreements")
    text = list(_text(report, measured, certification, out, served=serve_it))
    failed = require and not report.certified
    print_report(Report(report, text, EXIT_FAILED if failed else 0), output)
    if serve_it:
        serve(bundle, port, output)


def _show(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _chosen(arguments: list[str] | tuple[str, ...], files: dict[str, Path]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for argument in arguments:
        role, _, number = argument.partition("=")
        if role not in files or not re.fullmatch("[0-9]{1,4}", number):
            raise ConfigError(
                f"--choose {argument[:80]!a} is not in the form edge=N or full=N; N is a number on the contact sheet."
            )
        found.setdefault(role, []).append(int(number))
    return found


def _text(
    report: PairReport, measured: Measured, certification: Certification | None, out: Path, *, served: bool
) -> Iterator[str]:
    yield from summary_lines(report, measured)
    if certification is not None:
        result = certification.result
        if isinstance(result, EventsResult):
            yield from promises_text(result, certification.unpromised, certification.broken)
        elif certification.certificate is not None:
            yield f"Certified: {certification.certificate.promise}."
        else:
            yield (
                f"Not certified on {result.n} rows that {certification.terms.promise(graded=certification.graded)}; "
                "every input goes to the full model. Some threshold would have to accept at least "
                f"{counted(result.n_needed, 'more row')} without a single error."
            )
        yield from caveats(certification)
        if (out / "disagreements").is_dir():
            yield f"Pictures of disagreements, edge at the left: {out / 'disagreements'}."
    yield f"The recipe with all assumptions: {out / 'recipe.toml'}."
    if not served:
        all_escalated = certification is not None and certification.certificate is None
        yield f"Next: firstline run {shlex.quote(str(out / BUNDLE))}" + (
            " (nothing is certified, so every request goes to the full model)" if all_escalated else ""
        )
