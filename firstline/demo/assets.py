"""Where the demo finds its bundle and its images: in the installed package, or in the checkout."""

from __future__ import annotations

from pathlib import Path

from firstline_core.errors import ConfigError

_HERE = Path(__file__).resolve().parent


def digits() -> Path:
    """The folder that holds `bundle/` and `heldout/`.

    Raises:
        ConfigError: neither the wheel's copy nor the checkout's is there.
    """
    for folder in (_HERE / "digits", _HERE.parents[1] / "models" / "digits"):
        if (folder / "bundle" / "manifest.json").is_file():
            return folder
    raise ConfigError("The demo's digits bundle is missing from this installation; reinstall firstline[workbench].")
