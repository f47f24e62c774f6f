"""A model's inputs and outputs by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from firstline_core.errors import ModelLoadError
from firstline_core.types import TensorSpec


def pick_port(
    specs: Sequence[TensorSpec], name: str, what: str, side: Literal["input", "output"], *, only: bool = False
) -> TensorSpec:
    """Returns the input or output that the manifest names, or the only one.

    Args:
        specs: the model's inputs, or its outputs.
        name: "" for the only one.
        what: the model, for messages.
        side: "input" or "output".
        only: refuse further ones, which would get no data.

    Raises:
        ModelLoadError: no port of that name, or several and no name.
    """
    names = ", ".join(f"'{spec.name}'" for spec in specs)
    if len(specs) > 1 and only:
        raise ModelLoadError(f"{what} has {len(specs)} {side}s, {names}; a bundle feeds one.")
    if not name and len(specs) == 1:
        return specs[0]
    for spec in specs:
        if spec.name == name:
            return spec
    if not name:
        raise ModelLoadError(
            f"{what} has {len(specs)} {side}s, {names}; name one of them as `{side}` in the recipe or manifest."
        )
    raise ModelLoadError(f"{what} has no {side} '{name}'; it has {names}.")
