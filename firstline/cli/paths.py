"""Paths that commands are given."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Annotated

import typer

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.errors import ConfigError

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)]


def is_there(path: Path) -> bool:
    """Whether something lies there that can be seen. `Path.exists` raises where no such name is possible."""
    return os.path.exists(path)  # noqa: PTH110


def require_bundle(path: Path) -> Path:
    """The path, where a bundle lies there: a wrong path is the caller's mistake, a broken bundle is not.

    Raises:
        ConfigError: there is no manifest.
    """
    if not os.path.isfile(path / MANIFEST_NAME):  # noqa: PTH113 (as `is_there`)
        raise ConfigError(
            f"{str(path)[:200]} is not a bundle: it has no {MANIFEST_NAME} (make one: firstline bundle create)."
        )
    return path
