"""`firstline bundle create`: builds a `BundleSpec` from flags or a recipe, and creates the bundle."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.output import Output, OutputOption, print_json, print_summary, progress, warn
from firstline.workbench.bundle import create_bundle
from firstline.workbench.calibrate import Against, Calibration, calibrate
from firstline.workbench.dataset import open_dataset
from firstline.workbench.inspect import summarise
from firstline.workbench.recipe import parse_score, read_recipe
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec, read_labels
from firstline.workbench.step_syntax import USAGE, parse_postprocess, parse_preprocess
from firstline_core.bundle.manifest import Policy
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError

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

EdgeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="[ID=]FILE", help="Edge model, .onnx or .tflite; repeat for variants, preferred first."),
]
ScoreOption = Annotated[str | None, typer.Option(help="max_probability (default), margin, entropy or graph:FILE.onnx.")]
CalibrateOption = Annotated[
    Path | None,
    typer.Option("--calibrate", help="Choose temperature and threshold on this data folder (not a certificate)."),
]
TargetOption = Annotated[
    float, typer.Option(help="With --calibrate: share of edge answers that may differ from the full model's.")
]
AgainstOption = Annotated[Against, typer.Option(help="With --calibrate: what the temperature takes as the truth.")]
GoldenOption = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="Image, folder or zip of images, or .npy of rows that each device must answer alike."
    ),
]


def create(
    *,
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file that declares the bundle, including what flags cannot express.")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder that the recipe's paths are relative to (default: the recipe's own).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the bundle, used in requests.")] = None,
    bundle_version: Annotated[int | None, typer.Option(help="Increase it with every change (default: 1).")] = None,
    edge: EdgeOption = None,
    full: Annotated[Path | None, typer.Option(help="Full model, .onnx or .tflite.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Text file, one label a line.")] = None,
    labels_skip: Annotated[int | None, typer.Option(min=0, help="Leading lines to skip.")] = None,
    preprocess: Annotated[str | None, typer.Option(help="Steps before the model, for every model; see below.")] = None,
    edge_preprocess: Annotated[str | None, typer.Option(help="Instead, for the edge models.")] = None,
    full_preprocess: Annotated[str | None, typer.Option(help="Instead, for the full model.")] = None,
    postprocess: Annotated[str | None, typer.Option(help="Steps after the model, for every model; see below.")] = None,
    edge_postprocess: Annotated[str | None, typer.Option(help="Instead, for the edge models; '' means none.")] = None,
    full_postprocess: Annotated[str | None, typer.Option(help="Instead, for the full model; '' means none.")] = None,
    score: ScoreOption = None,
    temperature: Annotated[float | None, typer.Option(help="Divides log-probabilities before scoring.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Accept edge answers of at least this score.")] = None,
    calibrate_on: CalibrateOption = None,
    target_disagreement: TargetOption = 0.01,
    against: AgainstOption = "labels",
    golden: GoldenOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a bundle from model files, and check that they fit together.

    Quantised models take real values; the runtime quantises them.
    """
    flags = _Flags(
        name=name, edge=edge, full=full, labels=labels, labels_skip=labels_skip,
        preprocess=preprocess, edge_preprocess=edge_preprocess, full_preprocess=full_preprocess,
        postprocess=postprocess, edge_postprocess=edge_postprocess, full_postprocess=full_postprocess,
    )  # fmt: skip
    spec = _spec(flags, recipe, models)
    spec = replace(
        spec,
        version=spec.version if bundle_version is None else bundle_version,
        policy=_policy(spec.policy, score, temperature, threshold),
    )
    if calibrate_on is not None and threshold is not None:
        raise ConfigError("--calibrate chooses the threshold; drop --threshold, or --calibrate.")
    calibrator = None
    if calibrate_on is not None:
        calibrator = _Calibrator(calibrate_on, target_disagreement, against, keep_temperature=temperature is not None)
    warnings: list[str] = []
    made = create_bundle(spec, out, force=force, choose_policy=calibrator, golden=golden or (), warn=warnings.append)
    _report(made, out, calibrator.found if calibrator is not None else None, warnings, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    """The flags that a recipe replaces; None for each that is not given."""

    name: str | None
    edge: list[str] | None
    full: Path | None
    labels: Path | None
    labels_skip: int | None
    preprocess: str | None
    edge_preprocess: str | None
    full_preprocess: str | None
    postprocess: str | None
    edge_postprocess: str | None
    full_postprocess: str | None

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
        edge_steps = _steps(self.edge_preprocess, self.preprocess, self.edge_postprocess, self.postprocess)
        full_steps = _steps(self.full_preprocess, self.preprocess, self.full_postprocess, self.postprocess)
        return BundleSpec(
            name=self.name,
            version=1,
            labels=read_labels(self.labels, self.labels_skip or 0),
            edge=tuple(_edge(argument, *edge_steps) for argument in self.edge or ()),
            full=_model(self.full, "", *full_steps) if self.full is not None else None,
        )


def _spec(flags: _Flags, recipe: Path | None, models: Path | None) -> BundleSpec:
    if recipe is None:
        if models is not None:
            raise ConfigError("--models goes with --recipe; without one, name the files themselves.")
        return flags.spec()
    if given := flags.given():
        raise ConfigError(f"{given[0]} is part of the recipe; drop the flag and change {recipe}.")
    return read_recipe(recipe, models)


def _steps(own_before: str | None, before: str | None, own_after: str | None, after: str | None) -> tuple[str, str]:
    """Returns the steps before and after a model: its own if given, else those of every model."""
    return (
        own_before if own_before is not None else before or "",
        own_after if own_after is not None else after or "",
    )


def _edge(argument: str, before: str, after: str) -> ModelSpec:
    model_id, equals, file = argument.partition("=")
    if not equals or Path(argument).exists() or "/" in model_id:
        return _model(Path(argument), "", before, after)
    return _model(Path(file), model_id, before, after)


def _model(file: Path, model_id: str, before: str, after: str) -> ModelSpec:
    return ModelSpec(file=file, id=model_id, preprocess=parse_preprocess(before), postprocess=parse_postprocess(after))


def _policy(policy: PolicySpec, score: str | None, temperature: float | None, threshold: float | None) -> PolicySpec:
    """Returns the policy with the given flags in place of its own values."""
    return PolicySpec(
        policy.score if score is None else parse_score(score),
        policy.temperature if temperature is None else temperature,
        policy.threshold if threshold is None else threshold,
    )


@dataclass(slots=True)
class _Calibrator:
    """Chooses a bundle's policy on a data folder, and keeps what it found.

    Args:
        folder: of the data.
        target_disagreement: share of edge answers that may differ from the full model's.
        against: the truth that the temperature is fitted to.
        keep_temperature: choose the threshold alone.
    """

    folder: Path
    target_disagreement: float
    against: Against
    keep_temperature: bool
    found: Calibration | None = field(default=None, init=False)

    def __call__(self, bundle: Bundle) -> Policy:
        with progress("Calibrating") as bar:
            self.found = calibrate(
                bundle,
                open_dataset(self.folder),
                target_disagreement=self.target_disagreement,
                against=self.against,
                keep_temperature=self.keep_temperature,
                progress=bar,
            )
        return self.found.policy


def _report(made: Bundle, out: Path, calibration: Calibration | None, warnings: list[str], output: Output) -> None:
    for sentence in warnings:
        warn(sentence)
    summary = summarise(made)
    if output is Output.JSON:
        print_json({"path": str(out), "bundle": summary, "calibration": calibration, "warnings": warnings})
        return
    print_summary(out, summary)
    if calibration is not None:
        _print_calibration(calibration)


def _print_calibration(found: Calibration) -> None:
    typer.echo(
        f"Chosen on {found.samples} images, not certified: temperature {found.policy.score.temperature:g}, threshold "
        f"{found.policy.threshold:g}. On those images:"
    )
    for variant in found.variants:
        typer.echo(
            f"  {variant.id}: {variant.edge_share:.1%} kept at the edge, of which {variant.disagreement:.2%} differ "
            f"from the full model (target: at most {found.target_disagreement:.2%})"
        )
