"""Paths that commands are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.errors import ConfigError

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)]


def require_bundle(path: Path) -> Path:
    """The path, where a bundle lies there: a wrong path is the caller's mistake, a broken bundle is not.

    Raises:
        ConfigError: there is no manifest.
    """
    if not (path / MANIFEST_NAME).is_file():
        raise ConfigError(f"{path} is not a bundle: it has no {MANIFEST_NAME} (make one: firstline bundle create).")
    return path
