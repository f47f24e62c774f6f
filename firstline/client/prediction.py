"""A classifier's answer in words, as the short way in gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firstline_core.errors import InvalidTensorError, ProtocolError
from firstline_core.protocol import answer as answers
from firstline_core.types import Answer


@dataclass(frozen=True, slots=True)
class Prediction:
    """A classifier's answer in words.

    Attributes:
        label: the likeliest class.
        probability: of that class.
        top: the likeliest classes with their probabilities, best first.
        answer: who answered and why, whether it is final, and the `request_id` to ask for a correction by.
    """

    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    model: str
    version: str
    answer: Answer


def prediction_from(found: Mapping[str, Any], source: str) -> Prediction:
    """What the JSON of the short way means.

    Args:
        found: the object that came.
        source: its address, for the error's sentence.

    Raises:
        InvalidTensorError: the file held several rows, or the model is no classifier.
        ProtocolError: it is not what a Firstline server says.
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
