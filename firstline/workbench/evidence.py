"""The rows of a certificate: the answers of an edge variant and of the full model to a data set.

Both models run on this machine, or the edge model on a real device, because int8 scores differ between processors. The
device answers over its REST API (`route=edge`); the full model then runs here, or on a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.client.sync_client import Client
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.evaluate import Measured, measure
from firstline.workbench.observe import Progress
from firstline.workbench.selection import EdgeRows, cluster_keys
from firstline.workbench.sequences import Sequences, find_sequences
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, InferenceError, ProtocolError, RequestError, UnauthorizedError, listed
from firstline_core.routing.certificate import Contract
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import Scores, Task, check_outputs
from firstline_core.tasks.tensors import Tensors
from firstline_core.telemetry.wording import counted
from firstline_core.types import Arrays, InferResponse, join_rows

# Slow devices may take it; a lost one ends the command that much later.
_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """One row for each sample.

    Attributes:
        variant: the edge model that answered.
        edge: its answers.
        scores: (n,) of its answers, by the bundle's score.
        full: the full model's canonical outputs.
        truth: the data's labels, see `Task.truth`; None without labels.
        clusters: (n,) of the rows that depend on each other, such as the frames of one clip; () if all are independent.
            "" for a row that depends on no other.
        sequences: signs that rows depend on each other, although the data names no clusters.
    """

    variant: Model
    edge: EdgeRows
    scores: NDArray[np.float64]
    full: Arrays
    truth: Arrays | None
    clusters: tuple[str, ...] = ()
    sequences: Sequences | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def losses(self, contract: Contract) -> Scores:
        """Returns what accepting each edge answer costs by a contract on edge answers, (n,) in 0..1.

        Harm is the loss against the label that the edge model adds to the full model's: 1 if only the edge is wrong.

        Raises:
            InferenceError: the task's loss graph fails, or gives other values than 0 to 1.
        """
        if isinstance(self.edge.task, Tensors):  # whose `loss` clips them
            self.edge.task.check_loss(self.edge.outputs, self.full)
        differs = self.edge.task.loss(self.edge.outputs, self.full)
        if contract != "harm":
            return differs
        harm: Scores = np.maximum(self.truth_losses(self.edge.outputs) - self.truth_losses(self.full), 0)
        return harm

    def truth_losses(self, outputs: Arrays) -> Scores:
        """Returns the losses of the edge's or the full model's outputs against the labels, (n,) in 0..1.

        Raises:
            ConfigError: the data has no labels, or rows without one.
        """
        if self.truth is None:
            raise ConfigError("The contract compares answers with labels, and the data has none.")
        require_labels(self.edge.task, self.truth, "The data")
        return self.edge.task.truth_loss(outputs, self.truth)

    def units(self, rows: NDArray[np.intp], seed: int) -> NDArray[np.intp]:
        """Returns one random row of each cluster among some rows, ascending; all of them without clusters.

        Args:
            rows: positions.
            seed: of the choice.
        """
        if not self.clusters:
            return rows
        shuffled = np.random.default_rng(seed).permutation(rows)
        _, first = np.unique(cluster_keys(self.clusters)[shuffled], return_index=True)
        return np.sort(shuffled[first])


def require_labels(task: Task, truth: Arrays, where: str) -> None:
    """Refuses rows without a label: all answers have the same loss there, so that no edge answer could do harm.

    Raises:
        ConfigError: there are such rows; `where` names the data in the message.
    """
    if absent := int((~task.labelled(truth)).sum()):
        raise ConfigError(
            f"{where} has {counted(absent, 'row')} without a label: the contract compares answers with labels; leave "
            "these rows out."
        )


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
        raise ConfigError(f"Bundle '{manifest.name}' has no edge variant '{edge}'{listed(edge, ids, 'it has:')}")
    return manifest.full


def evidence_of(measured: Measured) -> dict[str, Evidence]:
    """Returns the rows of each edge variant of a measured bundle with a full model, by id."""
    assert measured.full is not None  # noqa: S101 (the callers')
    task, dataset = measured.manifest.task, measured.dataset
    sequences = find_sequences(dataset)
    return {
        edge.answers.model.id: Evidence(
            variant=edge.answers.model,
            edge=EdgeRows(task, edge.answers.outputs, edge.answers.evidence),
            scores=edge.scores,
            full=measured.full.outputs,
            truth=measured.truth,
            clusters=dataset.clusters,
            sequences=sequences,
        )
        for edge in measured.edges
    }


def gather(
    bundle: Bundle, dataset: Dataset, *, edge: str = "", progress: Progress = lambda done, total: None
) -> Evidence:
    """Runs both models here, image by image.

    Args:
        bundle: with edge and full model.
        dataset: images; if labels matter, the caller checks them.
        edge: id of a variant; "" for the first one that loads, as on a device.
        progress: receives the number of processed samples and their total.

    Raises:
        ConfigError: the bundle lacks a tier or the variant, or the data does not fit.
        ModelLoadError: a model does not load here.
    """
    full_model(bundle, edge)
    variants = [edge] if edge else []
    measured = measure(bundle, dataset, variants=variants, progress=progress, all_evidence=True)
    (evidence,) = evidence_of(measured).values()
    return evidence


def gather_from_agent(
    bundle: Bundle,
    dataset: Dataset,
    agent: Client,
    *,
    edge: str = "",
    gateway: Client | None = None,
    progress: Progress = lambda done, total: None,
) -> Evidence:
    """Asks a device to answer every image. Cached outputs are valid, because the same model computed them.

    Args:
        bundle: that the device runs, with the same digests.
        dataset: images; if labels matter, the caller checks them.
        agent: the device.
        edge: id of the variant that it must run; "" for any.
        gateway: runs the full model; None runs it here.
        progress: receives the number of processed samples and their total.

    Raises:
        ConfigError: the device or the gateway runs another bundle, or the data does not fit.
        LinkError: one of them cannot be reached.
        FirstlineError: a tier answered with an error, or a model does not load here.
    """
    far, manifest, count = full_model(bundle, edge), bundle.manifest, len(dataset)
    truth = dataset.truth(manifest.task, manifest.inputs)
    try:
        status = agent.status()
    except UnauthorizedError:
        raise
    except RequestError as error:
        raise ConfigError(f"The server at {agent.url} is not an edge agent: {error.message}") from error
    variant = running_variant(status, manifest, agent.url)
    if edge and variant.id != edge:
        raise ConfigError(f"The device at {agent.url} runs the variant '{variant.id}', not '{edge}'.")
    answers, full = list[Arrays](), list[Arrays]()
    scores = np.empty(count, np.float64)
    with ExitStack() as stack:
        where: LoadedModel | Client
        where = stack.enter_context(closing(load_model(bundle, far, RuntimeOptions()))) if gateway is None else gateway
        for i, (sample, row) in enumerate(dataset.rows(manifest.inputs)):
            try:
                response = _ask(agent, manifest, row, "edge", variant.digest)
                full.append(_full_outputs(where, manifest, row))
            except UnauthorizedError:
                raise
            except RequestError as error:
                raise ConfigError(f"{dataset.place_of(sample)} was refused: {error.message}") from error
            answers.append(_row(response, manifest, agent.url))
            confidence = response.answer.confidence if response.answer is not None else None
            scores[i] = np.nan if confidence is None else confidence
            progress(i + 1, count)
    edge_rows = EdgeRows(manifest.task, join_rows(answers), {})
    return Evidence(variant, edge_rows, scores, join_rows(full), truth, dataset.clusters, find_sequences(dataset))


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
        models = [model for model in status["models"] if model["name"] == name]
        running = next((model for model in models if model["version"] == version), None)
        if running is None:
            has = ", ".join(model["version"] for model in models)
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


def _ask(client: Client, manifest: Manifest, row: Arrays, route: Any, digest: str) -> InferResponse:
    """Returns the answer of exactly this model.

    Raises:
        ConfigError: it comes from another model or version.
    """
    response = client.infer(manifest.name, row, version=manifest.version, route=route, timeout_ms=_TIMEOUT_MS)
    answered = response.answer.model_digest if response.answer is not None else ""
    if response.version != str(manifest.version) or answered != digest:
        raise ConfigError(
            f"{client.url} answered with version {response.version} and model {answered[:12] or 'unknown'} of "
            f"'{manifest.name}', where version {manifest.version} and model {digest[:12]} were asked for; every tier "
            "needs this very bundle."
        )
    return response


def _row(response: InferResponse, manifest: Manifest, where: str) -> Arrays:
    try:
        check_outputs(manifest.outputs_of(None), response.arrays, 1)
    except InferenceError as error:
        raise ProtocolError(
            f"{where} gave an answer that '{manifest.name}' does not declare: {error.message}"
        ) from error
    return response.arrays_of(manifest.task.outputs)


def _full_outputs(where: LoadedModel | Client, manifest: Manifest, row: Arrays) -> Arrays:
    """Returns the full model's outputs for a sample, computed here or by a gateway."""
    if isinstance(where, LoadedModel):
        return where.predict(row).outputs
    return _row(_ask(where, manifest, row, "cloud", manifest.full_digest), manifest, where.url)
