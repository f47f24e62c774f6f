"""`edge-agent plan explain [MODEL]`: the best way to run a bundle on this device, with the figures behind it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, FirstlineError, listed
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.kernel_files import Tree
from firstline_core.planning import split
from firstline_core.planning.plan import MBIT, Link, Plan, plan, plan_lines
from firstline_core.profile import profile
from firstline_core.profile.files import bundled_profiles, profile_of_machine
from firstline_core.profile.profile import Profile
from firstline_core.storage.files import naming, read_limited
from firstline_core.telemetry.wording import rounded
from firstline_edge.cli.agent_api import agent_status
from firstline_edge.cli.output import show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.models.loading import bundle_paths, named_bundles
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

Document = TypeVar("Document")


def command(arguments: argparse.Namespace) -> int:
    """Prints a plan for each model.

    Raises:
        ConfigError: no such model, or a file that cannot be read.
        ProtocolError: a file is not such a document.
    """
    settings = load_settings(arguments)
    surveyor = Surveyor(Tree(Path(settings.hardware.root)), settings.state_dir)
    catalogue = surveyor.known()  # nothing is measured for a plan
    link, assumed = link_for_plan(arguments.bandwidth, arguments.round_trip, settings)
    plans = []
    for bundle in _bundles(settings, arguments.model):
        measured, damaged = _profile(bundle, catalogue, arguments.profile, settings)
        planned = _plan(bundle, catalogue, link, arguments.splits, measured)
        plans.append(replace(planned, open=(*planned.open, *assumed, *damaged)))
    value = json.loads(msgspec.json.encode(plans))  # endless bandwidth is null
    show(arguments, value, (line for plan_ in plans for line in plan_lines(plan_)))
    return OK


def _plan(bundle: Bundle, catalogue: Catalogue, link: Link, split_file: Path | None, measured: Profile | None) -> Plan:
    own = bundle.path / split.DOCUMENT
    path = split_file or (own if own.is_file() else None)
    splits = _read("--splits", path, split.LIMIT_BYTES, split.decode) if path is not None else None
    return plan(bundle.manifest, measured, catalogue, splits, link)


def _profile(
    bundle: Bundle, catalogue: Catalogue, named: Path | None, settings: EdgeSettings
) -> tuple[Profile | None, list[str]]:
    """Returns the named profile, otherwise the device's own or one in the bundle; and errors of damaged ones."""
    if named is not None:
        return _read("--profile", named, profile.LIMIT_BYTES, profile.decode), []
    name = bundle.manifest.name
    own = StatePaths(settings.state_dir).device_profile_path(name)
    stored, damaged = profile_of_machine((own, *bundled_profiles(bundle.path, name)), catalogue.fingerprint)
    return stored, [f"{message} It is ignored." for message in damaged.values()]


def _bundles(settings: EdgeSettings, model: str | None) -> list[Bundle]:
    folders = bundle_paths(settings.models.folders)
    bundles = named_bundles(folders)
    matching = [bundle.path for bundle in bundles if model in (None, bundle.name)]
    if not matching:
        lacks = "no model" if model is None else f"no model '{model}'"
        names = [bundle.name for bundle in bundles]
        raise ConfigError(
            f"models.directories names {lacks}{listed(model or '', names, 'it names')} Name a bundle's folder there, "
            "or with --set 'models.directories=[\"FOLDER\"]'."
        )
    return [open_bundle(folder) for folder in matching]


def _read(option: str, path: Path, limit_bytes: int, decode: Callable[[bytes, str], Document]) -> Document:
    with naming(f"{option}: {path}"):
        content = read_limited(path, limit_bytes)
    return decode(content, f"{option}: {path}")


def link_for_plan(
    bandwidth_mbit_s: float | None, round_trip_ms: float | None, settings: EdgeSettings
) -> tuple[Link, list[str]]:
    """Returns the link, and sentences about the source of figures that were not stated.

    Args:
        bandwidth_mbit_s: as stated; None to ask the running agent.
        round_trip_ms: likewise.
        settings: the agent's.
    """
    bytes_per_s = None if bandwidth_mbit_s is None else bandwidth_mbit_s * MBIT
    stated = Link(bytes_per_s, round_trip_ms)
    if bytes_per_s is not None and round_trip_ms is not None:
        return stated, []
    try:
        status = agent_status(settings)[1]
    except FirstlineError:
        return stated, ["No agent of this configuration answers that has measured its link recently."]
    return with_measurements(stated, status)


def with_measurements(stated: Link, status: Mapping[str, Any]) -> tuple[Link, list[str]]:
    """Fills in unstated figures from the first link of the running agent that has measured them.

    Args:
        stated: the stated figures, which stay unchanged.
        status: the agent's.
    """
    timings = {name: link.get("timing") for name, link in status.get("links", {}).items()}
    name, timing = next(((name, timing) for name, timing in timings.items() if timing), ("", None))
    if timing is None:
        return stated, ["The running agent has sent nothing recently, so it has not measured its link."]
    bytes_per_s, round_trip_ms, notes = stated.bytes_per_s, stated.round_trip_ms, []
    at_rest_ms, rate = timing.get("round_trip_ms"), timing.get("bytes_per_s")
    if round_trip_ms is None:
        round_trip_ms = at_rest_ms
        what = "what a payload of no size would take"
        if round_trip_ms is None:
            round_trip_ms, what = timing.get("network_p50_ms"), f"that of payloads of {timing['typical_bytes']} bytes"
        if round_trip_ms is None:
            notes.append(f"The gateway does not say what of '{name}' is its own time, so the round trip is not known.")
        else:
            notes.append(
                f"The round trip, {rounded(round_trip_ms)} ms, was measured by the running agent over '{name}': {what}."
            )
    if bytes_per_s is None:
        bytes_per_s = rate
        if bytes_per_s is None:
            notes.append(f"Payloads over '{name}' were recently of much the same size, which shows no bandwidth.")
        else:
            mbit_s = bytes_per_s / MBIT
            notes.append(f"The bandwidth, {rounded(mbit_s)} Mbit/s, was measured by the running agent over '{name}'.")
    return Link(bytes_per_s, round_trip_ms), notes
