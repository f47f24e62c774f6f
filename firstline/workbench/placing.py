"""Puts a finished bundle where it belongs, whole or not at all, and never over what is none."""

from __future__ import annotations

import shutil
from pathlib import Path

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.errors import ConfigError


def refuse_overwriting(out: Path, force: bool) -> None:
    """Raises ConfigError where `out` may not be written: a link, no bundle, or a bundle and not `force`."""
    if out.is_symlink():
        raise ConfigError(f"{out} is a link; name the folder itself with --out.")
    if not out.exists():
        return
    if not (out / MANIFEST_NAME).is_file():
        raise ConfigError(f"{out} exists and is not a bundle; name another folder with --out.")
    if not force:
        raise ConfigError(f"The bundle {out} exists; name another folder with --out, or replace it with --force.")


def put_in_place(staged: Path, out: Path) -> None:
    """Puts the folder in place; a bundle that was there goes only once the new one stands."""
    if not out.exists():
        staged.rename(out)
        return
    aside = out.parent / f"{staged.name}.old"
    out.rename(aside)
    try:
        staged.rename(out)
    except OSError:
        aside.rename(out)
        raise
    shutil.rmtree(aside)
