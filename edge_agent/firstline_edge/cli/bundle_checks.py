"""Doctor's comparison of bundles: whether a gateway serves the ones that this device holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import FirstlineError
from firstline_core.protocol.http_client import HTTP_FAILURES
from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.models.loading import bundle_paths
from firstline_edge.settings.settings import EdgeSettings

_ADVICE = "give both the same bundle: copy this device's folder {path} into the gateway's models.directory, or its here"


async def served_findings(subject: str, client: httpx.AsyncClient, settings: EdgeSettings) -> list[Finding]:
    """One finding for each bundle that is held here and can be read.

    Args:
        subject: the link.
        client: of the gateway, with the device's token.
        settings: whose models.directories are looked at.
    """
    held: list[tuple[Path, Manifest]] = []
    for path in bundle_paths(Path(directory) for directory in settings.models.directories):
        try:
            held.append((path, open_bundle(path).manifest))
        except FirstlineError:  # told with the models
            continue
    if not held:
        return []
    try:
        response = await client.get("/firstline/v1/models")
        served = _digests(response.json()) if response.status_code == 200 else None
    except (*HTTP_FAILURES, ValueError, KeyError, TypeError, AttributeError):
        served = None
    if served is None:
        return [from_error(f"{subject} models", "the gateway does not say which models it serves")]
    return [
        _compared(f"{subject} model {manifest.name} {manifest.version}", path, manifest, served)
        for path, manifest in held
    ]


def _digests(said: Any) -> dict[str, dict[str, str]]:
    """Digests of full models by version, by name."""
    found: dict[str, dict[str, str]] = {}
    for model in said["models"]:
        found.setdefault(model["name"], {})[str(model["version"])] = model["full_model_digest"]
    return found


def _compared(subject: str, path: Path, manifest: Manifest, served: dict[str, dict[str, str]]) -> Finding:
    advice = _ADVICE.format(path=path)
    versions = served.get(manifest.name, {})
    if not versions:
        return from_error(subject, f"the gateway does not serve {manifest.name} at all", advice)
    digest = versions.get(str(manifest.version))
    if digest is None:
        there = ", ".join(sorted(versions))
        return from_error(subject, f"the gateway serves {manifest.name} only in version {there}", advice)
    if digest != manifest.full_digest:
        detail = f"the gateway's full model is {digest[:12]}, this bundle names {manifest.full_digest[:12] or 'none'}"
        return from_error(subject, detail, advice)
    return Finding(subject, State.OK, f"the gateway serves the same bundle, full model {digest[:12]}")
