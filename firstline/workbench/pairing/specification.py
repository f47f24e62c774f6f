"""The files, labels and choices of the user for a pair."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firstline.workbench.decodings import BUDGET_S

EDGE, FULL = "edge", "full"
"""The roles of the models of a pair."""

BUNDLE = "bundle"
"""Folder of the bundle below the output folder."""

_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class PairSpec:
    """The parts of a pair, and where it goes.

    Attributes:
        files: model files by role, "edge" and "full"; one of them may be absent.
        out: folder for the recipe, the bundle and pictures.
        name: of the bundle; "" derives it from the models' files.
        labels: given by the user; () to find them.
        chosen: numbers on contact sheets, by role.
        promises: such as "missed person 5% at 90%", or "5% at 90%" of all answers; () for the usual one.
        tolerance: of a regression, see `operating.read_tolerance`; "" to propose one.
        budget_s: seconds that the data may take to decide one choice.
    """

    files: Mapping[str, Path]
    out: Path
    name: str = ""
    labels: tuple[str, ...] = ()
    chosen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    promises: Sequence[str] = ()
    tolerance: str = ""
    budget_s: float = BUDGET_S

    def places(self, data: Path) -> list[Path]:
        """Returns the folders where label files may be: those of the models and above, and the data's."""
        folders = [folder for file in self.files.values() for folder in file.absolute().parents[:2]]
        return list(dict.fromkeys([*folders, data]))

    @property
    def bundle_name(self) -> str:
        if self.name:
            return self.name
        stems = [file.stem for file in self.files.values()]
        return (_NAME.sub("-", "-".join(dict.fromkeys(stems))).strip("-.") or "pair")[:64]
