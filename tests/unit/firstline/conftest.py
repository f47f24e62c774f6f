"""Fixtures for the tests of the workstation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstline.workbench import evaluate, evidence, row_checks, sequences
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.evaluate import Measured
from firstline_core.bundle.store import Bundle

_DIGITS = Path(__file__).parents[3] / "models" / "digits"
_BUNDLE = _DIGITS / "bundle"


@pytest.fixture(scope="module", autouse=True)
def _few_made_up_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each created or certified bundle is checked on the fewest rows; the checks' own tests run all of them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_row_checks.py":
            patch.setattr(row_checks, "_ROWS", row_checks._FEWEST_ROWS)
        yield


@pytest.fixture(scope="module", autouse=True)
def _digits_run_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """The models of the repository's digits run over the same digits once in each module of tests."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name != "test_row_checks.py":
            patch.setattr(evidence, "measure", _Remembered(evaluate.measure))
            patch.setattr(evidence, "find_sequences", _Remembered(sequences.find_sequences))
            patch.setattr(row_checks, "require_independent_rows", _Remembered(row_checks.require_independent_rows))
        yield


@pytest.fixture(autouse=True)
def _patched_tests_run_everything(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that replaces something, which may be used by the remembered functions, runs them itself."""
    _Remembered.is_off = "monkeypatch" in request.fixturenames
    yield
    _Remembered.is_off = False


class _Remembered:
    """A function with a memory for the digits, whose files no test changes; only equal arguments have equal results."""

    is_off = False

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._known: list[tuple[Any, Any]] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        bundles = [each for each in given if isinstance(each, Bundle)]
        dataset = next((each for each in given if isinstance(each, Dataset)), None)
        are_digits = dataset is not None and dataset.path.parent == _DIGITS
        if self.is_off or dataset is None or not are_digits or any(each.path != _BUNDLE for each in bundles):
            return self._run(*given, **named)
        others = [each for each in given if not isinstance(each, Bundle | Dataset)]
        options = {name: each for name, each in named.items() if not callable(each)}  # without reports of progress
        manifests = [each.manifest for each in bundles]
        arguments = (manifests, others, dataset.path, dataset.samples, dataset.label_column, options)
        for remembered, found in self._known:
            if remembered == arguments:
                return found
        found = self._run(*given, **named)
        _protect(found)
        self._known.append((arguments, found))
        return found


def _protect(found: object) -> None:
    """Makes arrays read-only, because several tests share them."""
    if isinstance(found, Measured):
        for answers in (*(edge.answers for edge in found.edges), found.full):
            if answers is not None:
                for array in (*answers.outputs.values(), *answers.evidence.values(), answers.seconds):
                    array.flags.writeable = False
