"""`firstline bundle create`: flags or a recipe to a `BundleSpec`, and on to `create_bundle`."""

from __future__ import annotations

from dataclasses import replace
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
from firstline.workbench.spelling import USAGE, parse_postprocess, parse_preprocess
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


def create(
    *,
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file that declares everything; for what flags cannot say.")
    ] = None,
    models: Annotated[Path | None, typer.Option(help="Where a recipe's paths start (default: its folder).")] = None,
    name: Annotated[str | None, typer.Option(help="The bundle's name, which clients ask for.")] = None,
    bundle_version: Annotated[int | None, typer.Option(help="Counts up with every change (default: 1).")] = None,
    edge: Annotated[
        list[str] | None,
        typer.Option(metavar="[ID=]FILE", help="Edge model, .onnx or .tflite; repeat for variants, preferred first."),
    ] = None,
    full: Annotated[Path | None, typer.Option(help="Full model, .onnx or .tflite.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Text file, one label a line.")] = None,
    labels_skip: Annotated[int | None, typer.Option(min=0, help="Leading lines that are no labels.")] = None,
    preprocess: Annotated[str | None, typer.Option(help="Steps before the model, for every model; see below.")] = None,
    edge_preprocess: Annotated[str | None, typer.Option(help="Instead, for the edge models.")] = None,
    full_preprocess: Annotated[str | None, typer.Option(help="Instead, for the full model.")] = None,
    postprocess: Annotated[str | None, typer.Option(help="Steps after the model, for every model; see below.")] = None,
    edge_postprocess: Annotated[str | None, typer.Option(help="Instead, for the edge models; '' means none.")] = None,
    full_postprocess: Annotated[str | None, typer.Option(help="Instead, for the full model; '' means none.")] = None,
    score: Annotated[
        str | None, typer.Option(help="max_probability (default), margin, entropy or graph:FILE.onnx.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Divides log-probabilities before scoring.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Keep edge answers of at least this score.")] = None,
    calibrate_on: Annotated[
        Path | None,
        typer.Option("--calibrate", help="Choose temperature and threshold on this data folder (not a certificate)."),
    ] = None,
    target_disagreement: Annotated[
        float, typer.Option(help="With --calibrate: share of kept answers that may differ from the full model's.")
    ] = 0.01,
    against: Annotated[
        Against, typer.Option(help="With --calibrate: what the temperature takes as the truth.")
    ] = "labels",
    golden: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Image, folder or zip of images, or .npy of rows: each device must answer alike."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a bundle from anyone's model files; what does not fit together is said now.

    Quantised models are fed real values; the runtime scales them.
    """
    if recipe is not None:
        flags = {
            "--name": name, "--edge": edge, "--full": full, "--labels": labels, "--labels-skip": labels_skip,
            "--preprocess": preprocess, "--edge-preprocess": edge_preprocess, "--full-preprocess": full_preprocess,
            "--postprocess": postprocess, "--edge-postprocess": edge_postprocess,
            "--full-postprocess": full_postprocess,
        }  # fmt: skip
        if said := [flag for flag, value in flags.items() if value is not None]:
            raise ConfigError(f"The recipe says what {said[0]} says; drop the flag and change {recipe}.")
        spec = read_recipe(recipe, models)
    else:
        if name is None or labels is None:
            raise ConfigError(f"A bundle needs {'--name' if name is None else '--labels'} (or a --recipe).")
        if models is not None:
            raise ConfigError("--models goes with --recipe; without one, name the files themselves.")
        spec = BundleSpec(
            name=name,
            version=1,
            labels=read_labels(labels, labels_skip or 0),
            edge=tuple(
                _edge(said, _first(edge_preprocess, preprocess), _first(edge_postprocess, postprocess))
                for said in edge or ()
            ),
            full=_model(full, "", _first(full_preprocess, preprocess), _first(full_postprocess, postprocess))
            if full is not None
            else None,
        )
    spec = replace(
        spec,
        version=spec.version if bundle_version is None else bundle_version,
        policy=PolicySpec(
            spec.policy.score if score is None else parse_score(score),
            spec.policy.temperature if temperature is None else temperature,
            spec.policy.threshold if threshold is None else threshold,
        ),
    )
    if calibrate_on is not None and threshold is not None:
        raise ConfigError("--calibrate chooses the threshold; drop --threshold, or --calibrate.")

    chosen: list[Calibration] = []

    def choose(bundle: Bundle) -> Policy:
        with progress("Calibrating") as told:
            found = calibrate(
                bundle,
                open_dataset(calibrate_on or Path()),
                target_disagreement=target_disagreement,
                against=against,
                keep_temperature=temperature is not None,
                progress=told,
            )
        chosen.append(found)
        return found.policy

    warnings: list[str] = []
    made = create_bundle(
        spec,
        out,
        force=force,
        choose_policy=choose if calibrate_on is not None else None,
        golden=golden or (),
        warn=warnings.append,
    )
    for sentence in warnings:
        warn(sentence)
    summary = summarise(made)
    if output is Output.JSON:
        print_json(
            {"path": str(out), "bundle": summary, "calibration": chosen[0] if chosen else None, "warnings": warnings}
        )
        return
    print_summary(out, summary)
    for found in chosen:
        _print_calibration(found)


def _edge(said: str, before: str, after: str) -> ModelSpec:
    model_id, equals, file = said.partition("=")
    if not equals or Path(said).exists() or "/" in model_id:
        return _model(Path(said), "", before, after)
    return _model(Path(file), model_id, before, after)


def _model(file: Path, model_id: str, before: str, after: str) -> ModelSpec:
    return ModelSpec(file=file, id=model_id, preprocess=parse_preprocess(before), postprocess=parse_postprocess(after))


def _first(own: str | None, common: str | None) -> str:
    return own if own is not None else common or ""


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
