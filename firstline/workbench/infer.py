"""Runs a bundle on files in this process: the decision of the tiers, without links, caches and outbox."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from firstline_core.bundle.loaded_model import LoadedModel, declared_inputs
from firstline_core.bundle.loading import Scorer, load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InvalidTensorError
from firstline_core.file_route import answer_json, image_of
from firstline_core.ids import new_request_id
from firstline_core.protocol.file_inference import request_from_file
from firstline_core.routing.policy import TierDecision, covered, threshold_in_use
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.files import did_you_mean_file
from firstline_core.types import (
    Answer,
    Arrays,
    InferResponse,
    ModelMetadata,
    Reason,
    Route,
    Status,
    Tensor,
    Tier,
    row_count,
)


def files_of(places: Sequence[Path]) -> dict[Path, Path]:
    """Returns files, and all files below folders in order of their names, each with its path within its folder.

    Names in folders that start with a dot are left out.

    Raises:
        ConfigError: a file or folder does not exist, or a folder has no files.
    """
    found: dict[Path, Path] = {}
    for place in places:
        if place.is_dir():
            inside = {path: path.relative_to(place) for path in sorted(place.rglob("*")) if path.is_file()}
            shown = {path: name for path, name in inside.items() if not any(part[0] == "." for part in name.parts)}
            if not shown:
                raise ConfigError(f"The folder {place} has no files; name another one.")
            found |= shown
        elif place.exists():
            found[place] = Path(place.name)
        else:
            raise ConfigError(f"There is no file {place}{did_you_mean_file(place)}")
    return found


_OF_REQUEST = re.compile(r"^(Row 0 of input '[^']*'|The body)(?= (is|has) )")


class LocalModels:
    """The models of a bundle. The edge model answers if the bundle's policy accepts its answer, else the full model.

    `open_models` creates it.
    """

    def __init__(self, bundle: Bundle, edge: LoadedModel | None, full: LoadedModel | None, score: Scorer) -> None:
        self._manifest = manifest = bundle.manifest
        self._edge, self._full, self._score = edge, full, score
        self._certificate = valid_certificate(manifest, edge.model) if edge is not None else None
        self._metadata = ModelMetadata(manifest.name, (), "", manifest.input_tensors, manifest.task.outputs)

    def infer(self, body: bytes, route: Route = Route.AUTO) -> tuple[InferResponse, dict[str, Any]]:
        """Returns the answer to one file of one row, and its form in JSON on the tiers' route for files.

        Args:
            body: an encoded image, or a row as JSON, as the tiers' route for files takes it.
            route: edge and cloud choose the model; without such a model, the other one answers.

        Raises:
            RequestError: the file does not fit the bundle.
            InferenceError: a model failed.
        """
        manifest = self._manifest
        needed = self._edge.input_names if self._edge is not None else manifest.full_inputs
        request = request_from_file(manifest.name, self._metadata, body, "", {})
        inputs = declared_inputs(request, manifest, needed)
        if row_count(inputs) > 1:
            raise InvalidTensorError(f"The file has {row_count(inputs)} rows; send one row, or ask a running tier.")
        response = self._infer(inputs, route)
        return response, answer_json(response, manifest.task, {}, image_of(request.inputs))

    def _infer(self, inputs: Arrays, route: Route) -> InferResponse:
        if self._full is None or (self._edge is not None and route is not Route.CLOUD):
            return self._from_edge(inputs, route)
        return self._from_full(inputs, Reason.REQUESTED if route is Route.CLOUD else Reason.HEAVY, None)

    def _from_edge(self, inputs: Arrays, route: Route) -> InferResponse:
        assert self._edge is not None  # noqa: S101 (a bundle has a model)
        prediction = self._edge.predict(inputs)
        confidence = float(self._score(prediction.outputs, prediction.evidence)[0])
        task, certificate = self._manifest.task, self._certificate
        group = task.groups(prediction.outputs)[0]
        threshold = threshold_in_use(self._manifest.policy.threshold, certificate, label=group)
        reason = Reason.CONFIDENT if confidence >= threshold else Reason.UNCERTAIN
        if self._full is not None and route is Route.AUTO:
            if not inputs.keys() >= set(self._full.input_names):
                reason = Reason.PARTIAL_INPUTS
            elif reason is Reason.UNCERTAIN:
                return self._from_full(inputs, reason, confidence)
        decision = TierDecision(Tier.EDGE, Reason.REQUESTED if route is Route.EDGE else reason)
        certified = covered(decision, threshold, certificate, label=group)
        return self._answer(self._edge, prediction.outputs, decision, confidence, certified=certified)

    def _from_full(self, inputs: Arrays, reason: Reason, confidence: float | None) -> InferResponse:
        assert self._full is not None  # noqa: S101 (checked by the callers)
        outputs = self._full.predict(inputs).outputs
        return self._answer(self._full, outputs, TierDecision(Tier.CLOUD, reason), confidence, certified=True)

    def _answer(
        self, model: LoadedModel, outputs: Arrays, decision: TierDecision, confidence: float | None, *, certified: bool
    ) -> InferResponse:
        answer = Answer(
            request_id=new_request_id(),
            status=Status.FINAL,
            certified=certified,
            durable=False,
            tier=decision.tier,
            reason=decision.reason,
            confidence=confidence,
            model_digest=self._manifest.full_digest if model is self._full else model.digest,
        )
        tensors = tuple(Tensor(spec.name, outputs[spec.name]) for spec in self._manifest.task.outputs)
        return InferResponse(self._manifest.name, str(self._manifest.version), tensors, answer=answer)


@contextmanager
def open_models(bundle: Bundle, options: RuntimeOptions = RuntimeOptions()) -> Iterator[LocalModels]:  # noqa: B008
    """Loads the first edge model that loads here, and the full model if its file is present.

    Raises:
        ModelLoadError: a model does not load.
    """
    manifest = bundle.manifest
    with ExitStack() as stack:
        edge = load_edge(bundle, options) if manifest.edge else None
        has_full = manifest.full is not None and (edge is None or not bundle.missing(manifest.full))
        full = load_model(bundle, manifest.full, options) if has_full and manifest.full is not None else None
        for model in (edge, full):
            if model is not None:
                stack.callback(model.close)
        yield LocalModels(bundle, edge, full, load_scorer(bundle, options))


def of_file(message: str) -> str:
    """Returns the error of a request as one about the file whose content it was."""
    return _OF_REQUEST.sub("it", message)
