"""`firstline bundle`: creates bundles from flags or a recipe, shows and verifies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group
from firstline.cli.options import DATA_HELP, BundleArgument, DataReading, require_bundle
from firstline.cli.output import progress, rows_checked_sentence, table, warn
from firstline.workbench.step_usage import USAGE
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table

    from firstline.workbench.bundle import create_bundle
    from firstline.workbench.calibrate import Calibration, calibrate
    from firstline.workbench.inspect import Summary, summarise, verify
    from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec, parse_score, read_labels, read_recipe
    from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess
    from firstline_core.bundle.manifest import Policy
    from firstline_core.bundle.store import Bundle, open_bundle

# "\b" keeps the lines of a paragraph as they are.
STEPS_HELP = "\n".join(
    [
        "\b",
        "Steps, separated by commas and carried out in order; a list's values are separated by slashes:",
        *(f"  {spelled:<30} {meaning}" for spelled, meaning in USAGE.values()),
        "For example: decode:RGB,center_crop:0.875,resize:224x224,scale:127.5:127.5,layout:NCHW",
        "             scale:0:255,scale:0.485/0.456/0.406:0.229/0.224/0.225",
    ]
)

app = command_group("Create bundles from model files, show and verify them.")


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """The flags that a recipe replaces; None for each that is not given.

    Attributes:
        name: Name of the bundle, used in requests.
        edge: Edge model, .onnx or .tflite; repeat for variants, preferred first.
        full: Full model, .onnx or .tflite.
        labels: Text file, one label a line.
        labels_skip: Leading lines to skip.
        preprocess: Steps before the model, for every model; see below.
        postprocess: Steps after the model, for every model; see below.
    """

    name: str | None = None
    edge: Annotated[list[str] | None, typer.Option(metavar="[ID=]FILE")] = None
    full: Path | None = None
    labels: Path | None = None
    labels_skip: Annotated[int | None, typer.Option(min=0)] = None
    preprocess: str | None = None
    postprocess: str | None = None

    def given(self) -> list[str]:
        """Returns the flags that are given, as they are written on the command line."""
        return [f"--{each.name.replace('_', '-')}" for each in fields(self) if getattr(self, each.name) is not None]

    def spec(self) -> BundleSpec:
        """Returns the bundle that the flags describe.

        Raises:
            ConfigError: a necessary flag is missing, or one does not make sense.
        """
        if self.name is None or self.labels is None:
            raise ConfigError(f"A bundle needs {'--name' if self.name is None else '--labels'} (or a --recipe).")
        labels = read_labels(self.labels, self.labels_skip or 0)
        with _naming_flag("--preprocess"):
            before = parse_preprocess(self.preprocess or "")
        with _naming_flag("--postprocess"):
            after = parse_postprocess(self.postprocess or "")

        def model(file: Path, model_id: str = "") -> ModelSpec:
            return ModelSpec(file=file, id=model_id, preprocess=before, postprocess=after)

        edge = tuple(model(*_named(argument)) for argument in self.edge or ())
        full = model(self.full) if self.full is not None else None
        return BundleSpec(name=self.name, version=1, labels=labels, edge=edge, full=full)


@contextmanager
def _naming_flag(flag: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error.message}") from error


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """How the policy is chosen on data.

    Attributes:
        target_disagreement: With --calibrate: share of edge answers that may differ from the full model's.
        against: With --calibrate: the truth for the temperature.
    """

    data: Annotated[
        Path | None,
        typer.Option("--calibrate", help=f"Choose temperature and threshold on data (not a certificate). {DATA_HELP}"),
    ] = None
    target_disagreement: float = 0.01
    against: Literal["labels", "full"] = "labels"

    def calibrate(self, bundle: Bundle, reading: DataReading, *, keep_temperature: bool) -> Calibration:
        """Chooses the policy; with `keep_temperature` only its threshold."""
        assert self.data is not None  # noqa: S101 (checked by the caller)
        with progress("Calibrating") as bar:
            return calibrate(
                bundle,
                reading.open(self.data, bundle.manifest.inputs),
                target_disagreement=self.target_disagreement,
                against=self.against,
                keep_temperature=keep_temperature,
                progress=bar,
            )


@command(
    app,
    "create",
    example="firstline bundle create --name digits --edge edge.onnx --full full.onnx --labels labels.txt --out digits",
    epilog=STEPS_HELP,
)
def create(
    flags: ModelFlags,
    calibration_options: CalibrationOptions,
    reading: DataReading,
    *,
    out: Path,
    recipe: Path | None = None,
    models: Path | None = None,
    bundle_version: int | None = None,
    score: str | None = None,
    temperature: float | None = None,
    threshold: float | None = None,
    golden: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None,
    force: bool = False,
) -> Report:
    """Create a bundle from model files, and check that they fit together.

    Quantised models take real values; the runtime quantises them.

    Args:
        out: Folder to create.
        recipe: TOML file that declares the bundle, including what flags cannot express.
        models: Folder that the recipe's paths are relative to (default: the recipe's own).
        bundle_version: Increase it with every change (default: 1).
        score: A score of the task (default: its first), or graph:FILE.onnx.
        temperature: Divides log-probabilities before scoring.
        threshold: Accept edge answers of at least this score.
        golden: Data set, such as an image, whose rows each device must answer alike: up to 64, evenly spread.
        force: Replace an existing bundle.
    """
    spec = _spec(flags, recipe, models)
    policy = spec.policy
    spec = replace(
        spec,
        version=spec.version if bundle_version is None else bundle_version,
        policy=PolicySpec(
            policy.score if score is None else parse_score(score, Path(), spec.task),
            policy.temperature if temperature is None else temperature,
            policy.threshold if threshold is None else threshold,
        ),
    )
    if calibration_options.data is not None and threshold is not None:
        raise ConfigError("--calibrate chooses the threshold; drop --threshold, or --calibrate.")
    calibration: Calibration | None = None

    def choose_policy(bundle: Bundle) -> Policy:
        nonlocal calibration
        calibration = calibration_options.calibrate(bundle, reading, keep_temperature=temperature is not None)
        return calibration.policy

    warnings: list[str] = []
    rows_checked: dict[str, int] = {}
    bundle = create_bundle(
        spec,
        out,
        force=force,
        choose_policy=choose_policy if calibration_options.data is not None else None,
        golden=golden or (),
        warn=warnings.append,
        count_rows=rows_checked.__setitem__,
    )
    for sentence in warnings:
        warn(sentence)
    summary = summarise(bundle)
    value = {
        "path": str(out),
        "bundle": summary,
        "calibration": calibration,
        "warnings": warnings,
        "rows_checked": rows_checked,
    }
    calibrated = [] if calibration is None else _calibration_text(calibration)
    return Report(value, (*_summary_text(out, summary), rows_checked_sentence(rows_checked), *calibrated))


def _spec(flags: ModelFlags, recipe: Path | None, models: Path | None) -> BundleSpec:
    if recipe is None:
        if models is not None:
            raise ConfigError("--models goes with --recipe; without one, name the files themselves.")
        return flags.spec()
    if flags_used := flags.given():
        raise ConfigError(f"{flags_used[0]} is part of the recipe; drop the flag and change {recipe}.")
    return read_recipe(recipe, models)


def _named(argument: str) -> tuple[Path, str]:
    """Returns the file and the id of `[ID=]FILE`."""
    model_id, equals, file = argument.partition("=")
    if not equals or Path(argument).exists() or "/" in model_id:
        return Path(argument), ""
    return Path(file), model_id


def _calibration_text(calibration: Calibration) -> Iterator[str]:
    policy = calibration.policy
    temperature = f"temperature {policy.score.temperature:g}, " if policy.score.temperature != 1 else ""
    yield (
        f"Chosen on {calibration.samples} samples, not certified: {temperature}threshold {policy.threshold:g}. "
        "On those samples:"
    )
    for variant in calibration.variants:
        yield (
            f"  {variant.id}: {variant.edge_share:.1%} accepted at the edge, of which {variant.disagreement:.2%} "
            f"differ from the full model (target: at most {calibration.target_disagreement:.2%})"
        )


@command(app, "get", example="firstline bundle get digits")
def get(path: BundleArgument) -> Report:
    """Show a bundle's models, digests, steps and policy."""
    summary = summarise(open_bundle(require_bundle(path)))
    return Report(summary, _summary_text(path, summary))


@command(app, "verify", example="firstline bundle verify digits")
def verify_bundle(path: BundleArgument) -> Report:
    """Check the SHA-256 of every file, load every model and run it. Exits 1 if a check fails.

    A model's answer to a row must not depend on other rows, on earlier rows or on chance.
    """
    checks = verify(require_bundle(path))
    failed = any(check.outcome == "failed" for check in checks)
    text = [f"{check.outcome:<7} {check.what}: {check.detail}" for check in checks]
    return Report({"path": str(path), "ok": not failed, "checks": checks}, text, EXIT_FAILED if failed else 0)


def _summary_text(path: Path, summary: Summary) -> Iterator[str | Table]:
    score = summary.policy.score
    labels = f", {counted(len(summary.labels), 'label')}" if summary.labels else ""
    yield f"{path}: {summary.name} version {summary.version}, {summary.task}{labels}."
    for model in summary.models:
        if model.batch is not None:
            yield f"{model.id} has `batch: 1`: it runs with one row at a time."
    for spec in summary.inputs:
        yield f"Input '{spec.name}': {spec.kind}, {spec.datatype} {list(spec.shape)}."
    yield (
        f"Policy: accept an edge answer when {score.kind} (temperature {score.temperature:g}) is at least "
        f"{summary.policy.threshold:g}."
    )
    for model in summary.models:
        if model.certificate is not None and not model.uncertified:
            lowest = f" and up, by {model.certificate.by}" if model.certificate.by else ""
            at = f"{model.certificate.threshold:g}{lowest}"
            yield f"{model.id} is certified at {at}: {model.certificate.promise}."
        elif model.certificate is not None:
            yield f"{model.id} is not certified: {model.uncertified}."
    rows = (
        (
            model.tier,
            model.id,
            model.file if model.present else f"{model.file} (absent)",
            f"{model.size_bytes:,}",
            model.precision,
            model.digest[:12],
            model.preprocess or "-",
            model.postprocess or "-",
        )
        for model in summary.models
    )
    yield table("tier", "model", "file", ">bytes", "precision", "digest", "before", "after", rows=rows)
