"""A distribution with a task, installed into a folder as pip does."""

import sys
from pathlib import Path

import pytest

SOURCE = '''
import numpy as np

from firstline_core.tasks.classification import Classification


class Triage(Classification, frozen=True, tag="triage"):
    """A classifier whose first labels are alike: confusing them costs nothing."""

    alike: int = 2

    @property
    def digest(self):
        return f"triage-1-{self.alike}"

    def loss(self, edge, full):
        some, other = (np.maximum(each["probabilities"].argmax(axis=1), self.alike - 1) for each in (edge, full))
        return (some != other).astype(np.float32)


class Bare(Classification, frozen=True, tag="other"):
    pass


class Failing(Triage, frozen=True, tag="failing"):
    """Its functions that score, group and count raise what no tier expects, if an answer is sure."""

    def score(self, kind, outputs, evidence, *, temperature=1.0):
        return fail(outputs) or super().score(kind, outputs, evidence, temperature=temperature)

    def supposed_losses(self, outputs, evidence):
        return fail(outputs) or super().supposed_losses(outputs, evidence)

    def groups(self, outputs):
        return fail(outputs) or super().groups(outputs)

    def occurrences(self, outputs):
        return fail(outputs) or super().occurrences(outputs)


class Certain(Triage, frozen=True, tag="certain"):
    """Its score is infinite for a certain answer."""

    def score(self, kind, outputs, evidence, *, temperature=1.0):
        with np.errstate(divide="ignore"):
            return -np.log(1 - outputs["probabilities"].max(axis=1))


class Flat(Triage, frozen=True, tag="flat"):
    """Its features lack the axis of the rows."""

    def features(self, outputs, evidence):
        return np.zeros(3, np.float32)


def fail(outputs):
    if outputs["probabilities"].max() > 0.8:
        raise KeyError("margins")


unfinished = int
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *entries: str, name: str = "triage-task") -> None:
    """Installs a distribution whose module has the tasks of `SOURCE`.

    Args:
        folder: becomes part of the path of modules.
        monkeypatch: removes it again.
        entries: of the group, such as "triage = triage_task:Triage".
        name: of the distribution.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "triage_task.py").write_text(SOURCE)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(entries or ["triage = triage_task:Triage"])
    (info / "entry_points.txt").write_text(f"[firstline.tasks]\n{lines}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "triage_task", raising=False)
