"""`firstline infer`: runs a bundle, or a model of a running tier, on files."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from firstline.cli.command import EXIT_FAILED, command, command_group
from firstline.cli.options import GatewayOptions, require_bundle
from firstline.cli.output import Output, OutputOption, progress, say
from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    ForbiddenError,
    InferenceError,
    InvalidTensorError,
    RequestError,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.storage.files import did_you_mean_file, naming

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from PIL import Image

    from firstline.client.results import Detections, Segmentation, own_members, prediction_from
    from firstline.workbench.infer import files_of, of_file, open_models
    from firstline_core.bundle.manifest import MANIFEST_NAME
    from firstline_core.bundle.store import open_bundle
    from firstline_core.processing.images import decode
    from firstline_core.processing.steps import Decode
    from firstline_core.tasks.drawing import caption
    from firstline_core.types import Route

app = command_group()

_NAME_A_BUNDLE = "; name a bundle's folder, such as models/digits, or, for a model by name, its server with --url."

# Nothing can be right for the next file either.
_STOPS = (UnknownModelError, UnauthorizedError, ForbiddenError)

Answer = tuple[dict[str, Any], "Callable[[Image.Image], Image.Image]"]
"""An answer in JSON, and the function that draws it on the upright image."""
Infer = Callable[[bytes], Answer]


@dataclass(frozen=True, slots=True)
class TierOptions(GatewayOptions):
    """A running tier, and the API key for it.

    Attributes:
        url: Ask this running tier instead of a bundle's files.
    """

    url: Annotated[str, typer.Option(metavar="URL")] = ""


@command(app, "infer", example="firstline infer digits scan.png")
def infer_command(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    places: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    *,
    tier: TierOptions,
    route: Literal["auto", "edge", "cloud"] = "auto",
    draw: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run a model on files, and print one line for each; with -o json a JSON object a line.

    The files are what the tiers' route for files takes: images, or rows as JSON. Every file of a folder is taken, in
    order of the names. A file that does not fit is named on stderr, the others go on, and the exit code is 1. A model
    that does not load or a tier that does not answer stops the command.

    Args:
        model: Folder of a bundle, or with --url the name of a model.
        places: Files, and folders of files.
        route: auto, or the model that answers: edge or cloud.
        draw: Write each image with its answer drawn into this folder.
    """
    if draw is not None and draw.exists() and not draw.is_dir():
        raise ConfigError(f"--draw is {draw}, which is not a folder.")
    if not tier.url and Path(model).is_file() and (places[0] / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"{model} is a file, and {places[0]} a bundle, which comes first: firstline infer "
            f"{shlex.quote(str(places[0]))} {shlex.quote(model)}."
        )
    files = files_of(places)
    pictures = _picture_names(files.values())
    failed = 0
    with _opened(model, tier, Route(route)) as infer, progress("Inferring") as bar:
        for done, (file, name) in enumerate(files.items()):
            try:
                body = _read(file)
                answer, draw_on = infer(body)
                if draw is not None:
                    _save(draw_on(decode(body, Decode(), str(file))), draw, pictures[name])
            except _STOPS:
                raise
            except (RequestError, InferenceError) as error:
                failed += 1
                _show_failure(file, error, output)
            else:
                _show(file, answer, output)
            bar(done + 1, len(files))
    if failed:
        typer.echo(f"{failed} of {len(files)} files failed.", err=True)
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _opened(model: str, tier: TierOptions, route: Route) -> Iterator[Infer]:
    """Yields the function that answers a file."""
    if not tier.url:
        environment = (os.environ.get("FIRSTLINE_KEY_FILE", ""), os.environ.get("FIRSTLINE_CA", ""))
        if (tier.key_file, str(tier.ca_file or "")) != environment:  # so a flag was given
            raise ConfigError("--key-file and --ca go with --url.")
        folder = Path(model)
        if not folder.exists():
            raise ConfigError(f"There is no folder {model[:200]!a}{did_you_mean_file(folder, _NAME_A_BUNDLE)}")
        bundle = open_bundle(require_bundle(folder))
        with open_models(bundle) as models:

            def infer_here(body: bytes) -> Answer:
                response, document = models.infer(body, route)
                return document, lambda image: bundle.manifest.task.draw(image, response.arrays, 0)

            yield infer_here
        return
    with tier.client() as client:

        def infer_there(body: bytes) -> Answer:
            document = client.infer_document(model, body, route=route)
            return document, lambda image: _draw_answer(document, tier.url, image)

        yield infer_there


def _draw_answer(document: Mapping[str, Any], url: str, image: Image.Image) -> Image.Image:
    found = prediction_from(document, url)
    return found.draw(image) if isinstance(found, Detections | Segmentation) else caption(image, _said(document))


def _picture_names(names: Collection[Path]) -> dict[Path, Path]:
    """Returns different names of the pictures of files: PNG, with their own suffix only if they need it."""
    short, long = ({name: name.with_suffix(".png") for name in names}, {name: Path(f"{name}.png") for name in names})
    counts = Counter(short.values()) + Counter(long.values())
    return {name: short[name] if counts[short[name]] == 1 else long[name] for name in names}


def _save(picture: Image.Image, folder: Path, name: Path) -> None:
    file = folder / name
    with naming(file, "written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.save(file)


def _read(file: Path) -> bytes:
    with naming("it", refusal=InvalidTensorError):
        content = file.read_bytes()
    if not content:
        raise InvalidTensorError("it is empty; name a file with content.")
    return content


def _show(file: Path, answer: Mapping[str, Any], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(msgspec.json.encode({"file": str(file), **answer}))
        return
    by = answer["tier"] if answer.get("confidence") is None else f"{answer['tier']}, {answer['confidence']:.3f}"
    say(f"{file}: {_said(answer)} ({by})")


def _said(answer: Mapping[str, Any]) -> str:
    """Returns the answer to one file in a few words."""
    if "objects" in answer:
        counts = Counter(each["label"] for each in answer["objects"])
        return ", ".join(f"{count} {label}" for label, count in counts.items()) or "nothing"
    if "label" in answer:
        return f"{answer['label']} {answer['probability']:.3f}"
    if "mask" in answer:
        return ", ".join(f"{each['label']} {100 * each['share']:.4g} %" for each in answer["classes"]) or "nothing"
    return msgspec.json.encode(own_members(answer)).decode()


def _show_failure(file: Path, error: FirstlineError, output: Output) -> None:
    message = of_file(error.message)
    say(f"{file}: {message}", err=True)
    if output is Output.JSON:
        typer.echo(msgspec.json.encode({"file": str(file), "error": message, "code": error.code}))
