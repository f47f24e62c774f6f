"""Doctor's look at what a device needs to get anything from its fleet."""

from __future__ import annotations

from pathlib import Path

from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.fleet.updates.registry import HTTP_REQUIRED
from firstline_edge.settings.settings import EdgeSettings


def fleet_findings(settings: EdgeSettings) -> list[Finding]:
    """Checks whether models can come from the fleet; no findings on a device that is not a member of one."""
    if not settings.fleet.enabled:
        return []
    found = []
    if not any(link.kind == "http" for link in settings.links):
        found.append(Finding("fleet", State.SLOW, *HTTP_REQUIRED.split("; ", 1)))
    root = settings.fleet.root_file
    if not root:
        advice = "set fleet.root_file to the root metadata that `firstline keys init` wrote (1.root.json)"
        found.append(Finding("fleet.root_file", State.SLOW, "not set, so that no model comes from the fleet", advice))
        return found
    try:
        with Path(root).open("rb") as stream:
            stream.read(1)
    except OSError as error:
        found.append(from_error("fleet.root_file", f"{root} cannot be read: {error.strerror}", "put root.json there"))
    else:
        found.append(Finding("fleet.root_file", State.OK, f"{root} says whose signatures count"))
    return found
