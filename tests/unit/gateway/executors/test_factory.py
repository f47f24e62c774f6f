"""Which models the executors of the settings get, and which are loaded for them."""

import pytest
from support.gateway import DIGITS

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.errors import InferenceError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import ModelKey
from firstline_gateway.executors.factory import open_executors
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.settings.load import load

KEY = ModelKey("digits", 1)
LOCAL = {"engine": "local"}
FAR = {"engine": "oip", "endpoints": ["http://far.example:8000"]}


def opened(
    executors: dict[str, object], executors_of: dict[str, list[str]]
) -> tuple[dict[str, list[ModelKey]], LoadedModel | None]:
    """The models of each executor, and the model as it was loaded before they were opened."""
    settings = load(None, overrides={"executors": executors, "models.executors_of": executors_of})
    repository = ModelsFolder(DIGITS, copies_of=settings.copies_of).load(RuntimeOptions())
    members = open_executors(settings, repository, RuntimeOptions()).members
    return {member.name: list(member.models) for member in members}, repository.models[KEY].loaded


def runs(loaded: LoadedModel) -> bool:
    inputs = loaded.made_up_inputs(typical=False)
    assert inputs is not None
    try:
        loaded.predict(inputs)
    except InferenceError:  # it was closed
        return False
    return True


@pytest.mark.parametrize("executors", [{"cpu": LOCAL, "far": FAR}, {"far": FAR, "cpu": LOCAL}])
def test_local_executor_gets_a_model_that_the_remote_refuses(executors: dict[str, object]) -> None:
    models, loaded = opened(executors, {"digits": ["cpu"]})
    assert models == {"cpu": [KEY], "far": []}
    assert loaded is not None and runs(loaded)


def test_a_model_that_runs_elsewhere_alone_is_not_loaded() -> None:
    models, loaded = opened({"cpu": LOCAL, "far": FAR}, {"digits": ["far"]})
    assert models == {"cpu": [], "far": [KEY]}
    assert loaded is None


def test_the_first_local_executor_closes_a_model_that_it_does_not_take() -> None:
    models, loaded = opened({"cpu": LOCAL, "other": LOCAL}, {"digits": ["other"]})
    assert models == {"cpu": [], "other": [KEY]}
    assert loaded is not None and not runs(loaded)
