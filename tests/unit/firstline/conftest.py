"""Fixtures for the tests of the workstation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from firstline.workbench import evidence, observe, row_checks
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.observe import Observations
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle

_DIGITS = Path(__file__).parents[3] / "models" / "digits"


@pytest.fixture(scope="module", autouse=True)
def _few_made_up_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each created or certified bundle is checked on an eighth of the rows; the checks' own tests run all of them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_row_checks.py":
            patch.setattr(row_checks, "_ROWS", 32)
        yield


@pytest.fixture(scope="module", autouse=True)
def _digits_run_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """The models of the repository's digits run over the same digits once in each module of tests."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_row_checks.py":
            patch.setattr(evidence, "observe_here", _remembered(observe.observe_here))
            patch.setattr(row_checks, "require_independent_rows", _remembered(row_checks.require_independent_rows))
        yield


def _remembered(run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with a memory for the digits, whose files no test changes."""
    known = dict[str, Any]()

    def remembered(
        bundle: Bundle, models: Sequence[Model], dataset: Dataset | None = None, *more: Any, **named: Any
    ) -> Any:
        if bundle.path != _DIGITS / "bundle" or dataset is None or dataset.path.parent != _DIGITS:
            return run(bundle, models, dataset, *more, **named)
        options = [each for each in more if not callable(each)]
        key = repr((bundle.manifest, models, dataset.path, dataset.samples, options, named))
        if key not in known:
            known[key] = run(bundle, models, dataset, *more, **named)
            _protect(known[key])
        return known[key]

    return remembered


def _protect(found: object) -> None:
    """Makes arrays read-only, because several tests share them."""
    if isinstance(found, Observations):
        for answers in found.answers:
            for array in (*answers.outputs.values(), *answers.evidence.values(), answers.seconds):
                array.flags.writeable = False
