"""Moves a finished bundle into place atomically, and never over a folder that is not a bundle."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

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


def refuse_existing(out: Path) -> None:
    """Raises ConfigError where something lies at `out`, whatever it is."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists; name another folder with --out.")


def require_writable(out: Path) -> None:
    """Raises ConfigError where no bundle can be made at `out`; leaves nothing there."""
    try:
        nearest = next(folder for folder in out.absolute().parents if folder.exists())
        with TemporaryDirectory(prefix=f".{out.name}.", dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(f"The bundle {out} cannot be written: {error.strerror or error}.") from error


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """A folder to make a bundle in, which becomes `out` once all is made; of one that failed nothing is left.

    Raises:
        ConfigError: it cannot be written.
    """
    staged = out.parent / f".{out.name}.{secrets.token_hex(4)}"
    try:
        staged.mkdir(parents=True)
        yield staged
        _put(staged, out)
    except OSError as error:
        raise ConfigError(f"The bundle {out} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _put(staged: Path, out: Path) -> None:
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
