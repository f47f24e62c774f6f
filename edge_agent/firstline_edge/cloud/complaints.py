"""The gateway's refusals of this device's models, e.g. because it holds another bundle with that name."""

from __future__ import annotations

from firstline_core.errors import FirstlineError, ModelMismatchError, RuntimeFailure, UnknownModelError
from firstline_core.telemetry.logs import logger

log = logger(__name__)

# Of a model, and so of every request to it; what else is refused may be one request's own.
_OF_THE_MODEL = (ModelMismatchError, UnknownModelError, RuntimeFailure)


class Complaints:
    """The latest one against each model, until the gateway answers with that model again."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], FirstlineError] = {}

    def note(self, model: str, version: str, error: FirstlineError) -> None:
        """Keeps what is the model's; warns when it is new, not for every request."""
        if not isinstance(error, _OF_THE_MODEL):
            return
        before = self._said.get((model, version))
        self._said[model, version] = error
        if type(before) is not type(error):
            log.warning("the gateway cannot serve this model", model=model, version=version, error=error.message)

    def settle(self, model: str, version: str) -> None:
        """The gateway answered."""
        if self._said.pop((model, version), None) is not None:
            log.info("the gateway serves this model again", model=model, version=version)

    def of(self, model: str, version: str) -> str:
        """Returns the refusal as a sentence; "" for none."""
        error = self._said.get((model, version))
        return error.message if error is not None else ""
