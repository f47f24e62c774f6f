"""The rows of a certificate: the answers of an edge variant and of the full model to a data set.

Both models run on this machine, or the edge model on a real device, because int8 scores differ between processors. The
device answers over its REST API (`route=edge`); the full model then runs here, or on a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.client.sync_client import Client
from firstline.workbench.dataset import Dataset
from firstline.workbench.observe import Progress, image_tensor, observe
from firstline_core.bundle.loading import LoadedModel, load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, ProtocolError, RequestError, UnauthorizedError
from firstline_core.routing.certificate import Contract
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import Probabilities
from firstline_core.types import PROBABILITIES, InferResponse

# Slow devices may take it; a lost one ends the command that much later.
_TIMEOUT_MS = 60_000
FullModel = Callable[[bytes], int]
"""The full model's label of an encoded image."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One row for each image.

    Attributes:
        variant: the edge model that answered.
        probabilities: (n, classes) FP32.
        logits: (n, classes) FP32; None for a model that shows none.
        scores: (n,) of its answers, by the bundle's score.
        full: (n,) the full model's labels.
        truth: (n,) the data's labels.
    """

    variant: Model
    probabilities: Probabilities
    logits: Probabilities | None
    scores: NDArray[np.float64]
    full: NDArray[np.int64]
    truth: NDArray[np.int64]

    @property
    def edge(self) -> NDArray[np.int64]:
        """(n,) labels of the edge model."""
        labels: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return labels

    def losses(self, contract: Contract) -> NDArray[np.bool_]:
        """Returns (n,) whether accepting the edge answer breaks a contract on edge answers."""
        differs: NDArray[np.bool_] = self.edge != self.full
        return differs & (self.full == self.truth) if contract == "harm" else differs


def full_model(bundle: Bundle, edge: str) -> Model:
    """Returns the full model of a bundle with two tiers.

    Args:
        bundle: the bundle to certify.
        edge: id of a variant, or "".

    Raises:
        ConfigError: the bundle lacks a tier, or the variant does not exist.
    """
    manifest = bundle.manifest
    if not manifest.edge or manifest.full is None:
        raise ConfigError("A certificate compares edge and full model; the bundle needs both.")
    ids = [model.id for model in manifest.edge]
    if edge and edge not in ids:
        raise ConfigError(f"Bundle '{manifest.name}' has no edge variant '{edge}'; it has: {', '.join(ids)}.")
    return manifest.full


def gather(
    bundle: Bundle,
    dataset: Dataset,
    *,
    edge: str = "",
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Evidence:
    """Runs both models here, image by image.

    Args:
        bundle: with edge and full model.
        dataset: images; if labels matter, the caller checks them.
        edge: id of a variant; "" for the first one that loads, as on a device.
        options: how the models run.
        progress: receives the number of processed samples and their total.

    Raises:
        ConfigError: the bundle lacks a tier or the variant, or the data does not fit.
        ModelLoadError: a model does not load here.
    """
    full_model(bundle, edge)
    variant = next((model for model in bundle.manifest.edge if model.id == edge), None)
    if variant is None:
        with closing(load_edge(bundle, options)) as loaded:
            variant = loaded.model
    return gather_all(bundle, [variant], dataset, options=options, progress=progress)[variant.id]


def gather_all(
    bundle: Bundle,
    models: Sequence[Model],
    dataset: Dataset,
    *,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> dict[str, Evidence]:
    """Runs several models and the full model here, and returns the evidence of each by id, in one pass.

    Args:
        bundle: with a full model, and the files of all `models`.
        models: may include the full model.
        dataset: images.
        options: how the models run.
        progress: receives the number of processed images and their total.

    Raises:
        ConfigError: the bundle lacks a tier, or the data does not fit.
        ModelLoadError: a model does not load here.
    """
    manifest, full, score = bundle.manifest, full_model(bundle, ""), load_scorer(bundle, options)
    run = [*(model for model in models if model.id != full.id), full]
    with ExitStack() as stack:
        loaded = [stack.enter_context(closing(load_model(bundle, model, options))) for model in run]
        observed = observe(loaded, manifest.input, dataset, progress, with_logits=loaded)
    labels = observed.answers[-1].labels
    return {
        one.model.id: Evidence(one.model, one.probabilities, one.logits, one.scores(score), labels, observed.truth)
        for one in observed.answers
    }


def gather_from_agent(
    bundle: Bundle,
    dataset: Dataset,
    agent: Client,
    *,
    edge: str = "",
    gateway: Client | None = None,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
    progress: Progress = lambda done, total: None,
) -> Evidence:
    """Asks a device to answer every image. Cached outputs are valid, because the same model computed them.

    Args:
        bundle: that the device runs, with the same digests.
        dataset: images; if labels matter, the caller checks them.
        agent: the device.
        edge: id of the variant that it must run; "" for any.
        gateway: runs the full model; None runs it here.
        options: how the full model runs here.
        progress: receives the number of processed samples and their total.

    Raises:
        ConfigError: the device or the gateway runs another bundle, or the data does not fit.
        LinkError: one of them cannot be reached.
        FirstlineError: a tier answered with an error, or a model does not load here.
    """
    far, manifest, count = full_model(bundle, edge), bundle.manifest, len(dataset)
    if manifest.input.datatype != "BYTES":
        raise ConfigError(
            f"The bundle's input '{manifest.input.name}' takes no encoded images, which data folders hold."
        )
    try:
        status = agent.status()
    except UnauthorizedError:
        raise
    except RequestError as error:
        raise ConfigError(f"The server at {agent.url} is not an edge agent: {error.message}") from error
    variant = running_variant(status, manifest, agent.url)
    if edge and variant.id != edge:
        raise ConfigError(f"The device at {agent.url} runs the variant '{variant.id}', not '{edge}'.")
    probabilities = np.empty((count, len(manifest.labels)), np.float32)
    scores, (full, truth) = np.empty(count, np.float64), np.empty((2, count), np.int64)
    with ExitStack() as stack:
        if gateway is None:
            large = load_model(bundle, far, options)
            stack.callback(large.close)
            full_label: FullModel = partial(_here, large, manifest)
        else:
            full_label = partial(_on_gateway, gateway, manifest)
        for i, (sample, (encoded, label)) in enumerate(zip(dataset.samples, dataset.read(), strict=True)):
            try:
                response = _ask(agent, manifest, encoded, "edge", variant.digest)
                truth[i], full[i] = label, full_label(encoded)
            except UnauthorizedError:
                raise
            except RequestError as error:
                raise ConfigError(f"'{sample.file}' of {dataset.folder} was refused: {error.message}") from error
            probabilities[i] = _row(response, manifest, agent.url)
            confidence = response.answer.confidence if response.answer is not None else None
            scores[i] = np.nan if confidence is None else confidence
            progress(i + 1, count)
    return Evidence(variant, probabilities, None, scores, full, truth)


def running_variant(status: Mapping[str, Any], manifest: Manifest, where: str) -> Model:
    """Returns the variant of this bundle that a device runs.

    Args:
        status: the status of its agent.
        manifest: of the bundle.
        where: address of the device, for messages.

    Raises:
        ConfigError: it has another version, another bundle of this version, or runs no variant.
        ProtocolError: it is not the status of an agent.
    """
    name, version = manifest.name, str(manifest.version)
    remedy = "certify the bundle that it runs, or give it this one"
    try:
        held = [model for model in status["models"] if model["name"] == name]
        running = next((model for model in held if model["version"] == version), None)
        if running is None:
            has = ", ".join(model["version"] for model in held)
            other_version = f"'{name}' in version {has}, not {version}" if has else f"no model '{name}'"
            raise ConfigError(f"The device at {where} holds {other_version}; {remedy}.")
        if running["edge"] is None:
            raise ConfigError(f"The device at {where} runs no variant of '{name}' {version}: {running['problem']}")
        parts = {"full model": (running["full_model_digest"], manifest.full_digest)}
        parts["score"] = (running["score_digest"], manifest.score_digest(manifest.policy.score))
        variant = next((model for model in manifest.edge if model.digest == running["model_digest"]), None)
        other = [what for what, (its, ours) in parts.items() if its != ours]
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"The server at {where} is not an edge agent, or has another version.") from error
    if variant is None or other:
        differs = " and another ".join((["edge model or processing"] if variant is None else []) + other)
        raise ConfigError(f"The device at {where} runs '{name}' {version} with another {differs}; {remedy}.")
    return variant


def _ask(client: Client, manifest: Manifest, encoded: bytes, route: Any, digest: str) -> InferResponse:
    """Returns the answer of exactly this model.

    Raises:
        ConfigError: it comes from another model or version.
    """
    response = client.infer(
        manifest.name,
        {manifest.input.name: encoded},
        version=manifest.version,
        route=route,
        timeout_ms=_TIMEOUT_MS,
    )
    answered = response.answer.model_digest if response.answer is not None else ""
    if response.version != str(manifest.version) or answered != digest:
        raise ConfigError(
            f"{client.url} answered with version {response.version} and model {answered[:12] or 'unknown'} of "
            f"'{manifest.name}', where version {manifest.version} and model {digest[:12]} were asked for; every tier "
            "needs this very bundle."
        )
    return response


def _row(response: InferResponse, manifest: Manifest, where: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    probabilities = response.output(PROBABILITIES)
    if probabilities.shape != (1, len(manifest.labels)):
        shape, labels = list(probabilities.shape), len(manifest.labels)
        raise ProtocolError(f"{where} gave {shape} probabilities for one of {labels} labels.")
    row: np.ndarray[Any, np.dtype[np.float32]] = probabilities[0]
    return row


def _here(model: LoadedModel, manifest: Manifest, encoded: bytes) -> int:
    return int(model.predict(image_tensor(manifest.input, encoded)).outputs[PROBABILITIES].argmax())


def _on_gateway(gateway: Client, manifest: Manifest, encoded: bytes) -> int:
    response = _ask(gateway, manifest, encoded, "cloud", manifest.full_digest)
    return int(_row(response, manifest, gateway.url).argmax())
