"""A classifier's answer as a label, as the endpoint for files returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firstline_core.errors import InvalidTensorError, ProtocolError
from firstline_core.protocol import answer as answers
from firstline_core.types import Answer


@dataclass(frozen=True, slots=True)
class Prediction:
    """A classifier's answer as a label.

    Attributes:
        label: the most likely class.
        probability: of that class.
        top: the most likely classes with their probabilities, best first.
        answer: tier, reason and status of the answer, and the `request_id` of a later correction.
    """

    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    model: str
    version: str
    answer: Answer


def prediction_from(found: Mapping[str, Any], source: str) -> Prediction:
    """Reads the JSON answer of the endpoint for files.

    Args:
        found: the decoded object.
        source: the server's address, for error messages.

    Raises:
        InvalidTensorError: the file held several rows, or the model is not a classifier.
        ProtocolError: a Firstline server does not send this.
    """
    if "results" in found or "outputs" in found:
        raise InvalidTensorError("The answer is not one label: `infer` gives several rows, and outputs of any kind.")
    try:
        return Prediction(
            label=found["label"],
            probability=float(found["probability"]),
            top=tuple((entry["label"], float(entry["probability"])) for entry in found["top"]),
            model=found["model"],
            version=found["version"],
            answer=answers.from_dict(found),
        )
    except (KeyError, TypeError, ValueError, InvalidTensorError) as error:
        raise ProtocolError(f"{source} did not answer as a Firstline server does: {error}.") from error
