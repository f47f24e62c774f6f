"""Which models the executors of the settings get."""

from __future__ import annotations

import pytest
from support.gateway import DIGITS

from firstline_core.errors import InferenceError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.factory import open_executors
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.settings.load import load

KEY = ModelKey("digits", 1)
CPU = {"engine": "local"}
FAR = {"engine": "oip", "endpoints": ["http://far.example:8000"]}


def opened(executors: dict[str, object], executors_of: dict[str, list[str]]) -> tuple[Dispatcher, bool]:
    """The executors, and whether the model that was loaded for them can still run."""
    settings = load(None, overrides={"executors": executors, "models.executors_of": executors_of})
    repository = ModelsFolder(DIGITS).load(RuntimeOptions())
    loaded = repository.models[KEY].loaded
    assert loaded is not None
    inputs = loaded.trial_inputs()
    assert inputs is not None
    dispatcher = open_executors(settings, repository, RuntimeOptions())
    try:
        loaded.predict(inputs)
    except InferenceError:  # it was closed
        return dispatcher, False
    return dispatcher, True


@pytest.mark.parametrize("executors", [{"cpu": CPU, "far": FAR}, {"far": FAR, "cpu": CPU}])
def test_a_remote_executor_that_takes_no_model_leaves_it_to_the_local_one(executors: dict[str, object]) -> None:
    dispatcher, runs = opened(executors, {"digits": ["cpu"]})
    assert {member.name: list(member.models) for member in dispatcher.members} == {"cpu": [KEY], "far": []}
    assert runs


def test_a_model_that_no_local_executor_takes_is_closed() -> None:
    dispatcher, runs = opened({"cpu": CPU, "far": FAR}, {"digits": ["far"]})
    assert {member.name: list(member.models) for member in dispatcher.members} == {"cpu": [], "far": [KEY]}
    assert not runs
