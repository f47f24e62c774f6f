"""Firstline: a small model answers on the device, a full model answers for the rest.

This package runs on the workstation: the Python client, the command line, the workbench, the console and the demo.
`exports` lists the public names; they are imported when one is used, because the command line starts without numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firstline.exports import *  # noqa: F403 (all of them)


def __getattr__(name: str) -> Any:
    exports = import_module("firstline.exports")
    if name in ("__all__", *exports.__all__):
        return getattr(exports, name)
    raise AttributeError(f"module 'firstline' has no attribute {name!r}")


def __dir__() -> list[str]:
    exports = import_module("firstline.exports")
    return [*globals(), *exports.__all__]
