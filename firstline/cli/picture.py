"""The picture of a profile with those of other machines; its options are checked before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from firstline.cli.options import GatewayOptions
from firstline.cli.output import Output, print_json
from firstline.cli.profile_source import load_profile
from firstline.workbench.pareto import check_accuracy, check_picture, draw_profiles
from firstline_core.errors import ConfigError
from firstline_core.profile.profile import Profile
from firstline_core.profile.summary import profile_lines
from firstline_core.storage.artefact import Sha256

DrawOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw latency and energy against accuracy: .svg or .png; needs matplotlib."),
]
BesideOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PROFILE",
        help="Draw another machine's profile of it too: a file; or kept by the gateway: MACHINE (its latest of this "
        "bundle), BUNDLE/VERSION/MACHINE. May be repeated.",
    ),
]


class Picture(NamedTuple):
    """The file of a picture, and the other profiles to draw."""

    path: Path
    others: tuple[Profile, ...]


def picture_of(draw: Path | None, beside: Sequence[str] | None, bundle: str, gateway: GatewayOptions) -> Picture | None:
    """Returns the picture that the options describe; None for none.

    Args:
        draw: its file.
        beside: profiles of other machines.
        bundle: its name.
        gateway: which is asked for those that are no files.

    Raises:
        ConfigError: it cannot be drawn, or there is no such profile.
        FirstlineError: the gateway refuses.
    """
    if draw is None:
        if beside:
            raise ConfigError("--beside adds a machine to a picture; say --draw FILE too.")
        return None
    check_picture(draw)
    return Picture(draw, tuple(load_profile(said, bundle, gateway) for said in beside or ()))


def print_profile(
    profile: Profile,
    accuracy: Mapping[Sha256, float],
    output: Output,
    picture: Picture | None,
    last: str = "",
) -> None:
    """Prints a profile, and then draws it, so that a failure to draw loses no measurement.

    Args:
        profile: to print.
        accuracy: share of right answers by `Model.digest`; if empty, as stated in the profile.
        output: format.
        picture: to draw; None for none.
        last: printed as the last line of text.

    Raises:
        ConfigError: the picture cannot be drawn.
    """
    accuracy = accuracy or profile.accuracy
    if output is Output.JSON:
        print_json(profile)
    else:
        for line in profile_lines(profile, accuracy):
            typer.echo(line)
        if last:
            typer.echo(last)
    if picture is not None:
        check_accuracy(accuracy)
        draw_profiles([profile, *picture.others], accuracy, picture.path)
        typer.echo(f"Drawn: {picture.path}", err=output is Output.JSON)
