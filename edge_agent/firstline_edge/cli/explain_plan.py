"""`edge-agent explain plan [MODEL]`: how this device had best run a bundle, with the figures that say so."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from firstline_core.bundle.store import Bundle, declared, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.survey import describe_device
from firstline_core.planning import split
from firstline_core.planning.plan import Link, Plan, plan, plan_lines
from firstline_core.profile import profile
from firstline_core.profile.files import bundled_profiles, profile_of_machine
from firstline_core.profile.profile import Profile
from firstline_edge.cli import plan_link
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.models.loading import bundle_paths
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import device_profile_path, hardware_path

SPLITS = "split.json"

Document = TypeVar("Document")


def command(arguments: argparse.Namespace) -> int:
    """Prints a plan for each model.

    Raises:
        ConfigError: no such model, or a file that cannot be read.
        ProtocolError: a file is not such a document.
    """
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    catalogue = _catalogue(settings)
    link, assumed = plan_link.known(arguments.bandwidth, arguments.round_trip, settings)
    plans = []
    for bundle in _bundles(settings, arguments.model):
        found, damaged = _profile(bundle, catalogue, arguments.profile, settings)
        planned = _plan(bundle, catalogue, link, arguments.splits, found)
        plans.append(replace(planned, open=(*planned.open, *assumed, *damaged)))
    if arguments.output == "json":
        say_json(json.loads(msgspec.json.encode(plans)))  # endless bandwidth is null
    else:
        for line in (line for one in plans for line in plan_lines(one)):
            say(line)
    return OK


def _plan(bundle: Bundle, catalogue: Catalogue, link: Link, split_file: Path | None, found: Profile | None) -> Plan:
    splits = _read(split_file or _if_there(bundle.path / SPLITS), split.LIMIT_BYTES, split.decode)
    return plan(bundle.manifest, found, catalogue, splits, link)


def _profile(
    bundle: Bundle, catalogue: Catalogue, named: Path | None, settings: EdgeSettings
) -> tuple[Profile | None, list[str]]:
    """The named profile, else the device's own or one of this machine in the bundle; and errors of damaged ones."""
    if named is not None:
        return _read(named, profile.LIMIT_BYTES, profile.decode), []
    name = bundle.manifest.name
    own = device_profile_path(settings.state_dir, name)
    found, damaged = profile_of_machine((own, *bundled_profiles(bundle.path, name)), catalogue.fingerprint)
    return found, [f"{message} It is passed by." for message in damaged.values()]


def _bundles(settings: EdgeSettings, model: str | None) -> list[Bundle]:
    folders = list(bundle_paths(Path(folder) for folder in settings.models.directories))
    found = [folder for folder in folders if (said := declared(folder)) is not None and model in (None, said[0])]
    if not found:
        named = f"no model '{model}'" if model is not None else "no model"
        raise ConfigError(
            f"models.directories names {named}; it names {', '.join(map(str, folders)) or 'nothing'}. Name a bundle's "
            "folder there, or with --set 'models.directories=[\"FOLDER\"]'."
        )
    return [open_bundle(folder) for folder in found]


def _catalogue(settings: EdgeSettings) -> Catalogue:
    """The stored catalogue if it is valid; nothing is measured for a plan."""
    tree, folder = Tree(Path(settings.hardware.root)), settings.state_dir
    found, kept = (
        read_in_time(tree, partial(describe_device, tree, folder)),
        Surveyor(tree, folder, hardware_path(folder)).kept(),
    )
    return kept if kept is not None and kept.fingerprint == found.fingerprint else found


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None


def _read(path: Path | None, limit_bytes: int, decode: Callable[[bytes, str], Document]) -> Document | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return decode(content, str(path))
