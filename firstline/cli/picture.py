"""The picture of a profile, with other machines' beside it: what can be known of it before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from firstline.cli.named_profile import profile_named
from firstline.cli.output import Output, print_json
from firstline.cli.rollout_options import Where
from firstline.workbench.pareto import check_accuracy, check_picture, draw_profiles
from firstline_core.errors import ConfigError
from firstline_core.profile.profile import Profile
from firstline_core.profile.table import profile_lines
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
    """What is to be drawn beside the profile itself, and where."""

    path: Path
    others: tuple[Profile, ...]


def picture_of(draw: Path | None, beside: Sequence[str] | None, bundle: str, where: Where) -> Picture | None:
    """The picture that the options want; None where they want none.

    Args:
        draw: its file.
        beside: profiles of other machines.
        bundle: its name.
        where: the gateway that is asked for those that are no files.

    Raises:
        ConfigError: it cannot be drawn, or there is no such profile.
        FirstlineError: what the gateway said.
    """
    if draw is None:
        if beside:
            raise ConfigError("--beside adds a machine to a picture; say --draw FILE too.")
        return None
    check_picture(draw)
    return Picture(draw, tuple(profile_named(said, bundle, where) for said in beside or ()))


def print_profile(
    profile: Profile,
    accuracy: Mapping[Sha256, float],
    output: Output,
    picture: Picture | None,
    last: str = "",
) -> None:
    """Prints it, and draws it then: what was measured is seen whatever becomes of the picture.

    Args:
        profile: what was measured.
        accuracy: shares of right answers by `Model.digest`; where there are none, as the profile tells them.
        output: how it is printed.
        picture: to be drawn; None for none.
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
