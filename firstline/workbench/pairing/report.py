"""The report of a pair: share at the edge, bytes, latency, quality, and pictures of disagreements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from PIL import Image

from firstline.workbench.certify import Certification, PromisesResult
from firstline.workbench.infer import upright_image
from firstline.workbench.pairing.measuring import Measured
from firstline.workbench.pairing.pair import EDGE, FULL, ReadPair
from firstline.workbench.promises import UsualAnswer
from firstline.workbench.sequences import Sequences
from firstline_core.errors import ConfigError, RequestError
from firstline_core.types import Array, Arrays, slice_rows

_PICTURES = 12
_HEIGHT = 480


class Contract(Struct, frozen=True):
    """A promise about the edge answers, proved or not.

    Attributes:
        event: such as "missed person"; "" for any disagreement.
        n: observations.
        kept: share of them that is accepted at the edge.
        risk_upper: upper bound; None if it is not proved.
    """

    event: str
    epsilon: float
    delta: float
    certified: bool
    n: int
    kept: float
    risk_upper: float | None


class PairReport(Struct, frozen=True):
    """The result of `firstline pair`.

    Attributes:
        bundle: its folder.
        family: of each model; None for an absent one.
        quality: by "edge", "full" and "tiered", the figure by which the task compares models; None without labels.
        bytes_sent: of the inputs that go to the full model.
        latency_ms: medians on this machine, without the network; None for an absent model.
        sequences: signs that rows depend on each other, so that less is proved.
        usual_answer: the answer that a model could always give and still keep the promise.
    """

    bundle: str
    task: str
    family: dict[str, str | None]
    certified: bool
    contracts: tuple[Contract, ...]
    share_at_edge: float
    quality: dict[str, float | None] | None
    bytes_sent: int
    latency_ms: dict[str, float | None]
    sequences: Sequences | None
    usual_answer: UsualAnswer | None


def report_of(pair: ReadPair, measured: Measured, certification: Certification | None, folder: Path) -> PairReport:
    """Returns the report.

    Args:
        pair: that was made.
        measured: its models on the data.
        certification: None for a bundle of one model.
        folder: of the bundle.
    """
    accepted = accepted_rows(measured, certification)
    return PairReport(
        bundle=str(folder),
        task=measured.bundle.manifest.task.kind,
        family={role: pair.models[role].reading.family if role in pair.models else None for role in (EDGE, FULL)},
        certified=certification is not None and certification.certificate is not None,
        contracts=tuple(contracts_of(certification)) if certification is not None else (),
        share_at_edge=round(float(accepted.mean()), 6),
        quality=_quality(measured, accepted),
        bytes_sent=int(measured.sizes[~accepted].sum()),
        latency_ms=_latency(measured, accepted),
        sequences=certification.sequences if certification is not None else None,
        usual_answer=certification.usual if certification is not None else None,
    )


def accepted_rows(measured: Measured, certification: Certification | None) -> NDArray[np.bool_]:
    """Returns which rows are answered at the edge, (n,)."""
    rows = len(measured.sizes)
    if measured.edge is None or measured.full is None:
        return np.full(rows, measured.edge is not None)
    if certification is None or certification.result.threshold is None:
        return measured.scores >= measured.bundle.manifest.policy.threshold
    return certification.selection.scores >= certification.result.threshold


def contracts_of(certification: Certification) -> Iterator[Contract]:
    """Yields the contracts that were tested."""
    result = certification.result
    if isinstance(result, PromisesResult):
        for name, one in result.events.items():
            yield Contract(
                name, one.epsilon, one.delta, one.risk_upper is not None, one.n, round(one.kept, 6), one.risk_upper
            )
        return
    certificate = certification.certificate
    if certificate is not None:
        yield Contract(
            "", certificate.epsilon, certificate.delta, True, result.n, round(result.kept, 6), result.risk_upper
        )


def _quality(measured: Measured, accepted: NDArray[np.bool_]) -> dict[str, float | None] | None:
    if measured.truth is None:
        return None
    task, found = measured.bundle.manifest.task, dict[str, float | None]()
    sides: dict[str, tuple[Arrays, Arrays] | None] = {
        EDGE: None if measured.edge is None else (measured.edge.outputs, measured.edge.evidence),
        FULL: None if measured.full is None else (measured.full.outputs, measured.full.evidence),
        "tiered": _tiered(measured, accepted),
    }
    for name, side in sides.items():
        try:
            found[name] = None if side is None else round(task.summary(*side, measured.truth)[task.quality], 6)
        except ConfigError:  # no row has a label, or a package is not installed
            return None
    return found


def _tiered(measured: Measured, accepted: NDArray[np.bool_]) -> tuple[Arrays, Arrays] | None:
    """Returns the outputs of both tiers together."""
    edge, full = measured.edge, measured.full
    if edge is None or full is None:
        return None

    def joined(ours: Array, theirs: Array) -> Array:
        return np.where(accepted.reshape(-1, *[1] * (ours.ndim - 1)), ours, theirs)

    outputs = {name: joined(array, full.outputs[name]) for name, array in edge.outputs.items()}
    return outputs, {}


def _latency(measured: Measured, accepted: NDArray[np.bool_]) -> dict[str, float | None]:
    edge, full = measured.edge, measured.full
    seconds = {
        EDGE: None if edge is None else edge.seconds,
        FULL: None if full is None else full.seconds,
        "tiered": None if edge is None or full is None else edge.seconds + np.where(accepted, 0, full.seconds),
    }
    return {
        name: None if times is None else round(float(np.median(times)) * 1000, 3) for name, times in seconds.items()
    }


def draw_disagreements(measured: Measured, accepted: NDArray[np.bool_], folder: Path) -> list[Path]:
    """Writes pictures of rows in which the models differ, the accepted ones first, edge at the left.

    Returns:
        The files; none if the data are no images.
    """
    task, edge, full = measured.bundle.manifest.task, measured.edge, measured.full
    if edge is None or full is None or measured.dataset.media is None:
        return []
    loss = task.loss(edge.outputs, full.outputs)
    order = sorted(np.flatnonzero(loss > 0).tolist(), key=lambda row: (not accepted[row], -loss[row]))[:_PICTURES]
    written: list[Path] = []
    for row in order:
        sample = measured.dataset.samples[row]
        (content,) = replace(measured.dataset, samples=(sample,)).contents()
        try:
            image = upright_image(content, sample.file)
        except RequestError:
            return written
        sides = [
            task.draw(image, slice_rows(answers.outputs, row, row + 1), 0).resize(_size(image))
            for answers in (edge, full)
        ]
        picture = Image.new("RGB", (sum(side.width for side in sides), sides[0].height))
        picture.paste(sides[0], (0, 0))
        picture.paste(sides[1], (sides[0].width, 0))
        folder.mkdir(parents=True, exist_ok=True)
        decided = "accepted" if accepted[row] else "escalated"
        file = folder / f"{len(written) + 1:02}-{decided}-{Path(sample.file).stem}.png"
        picture.save(file)
        written.append(file)
    return written


def _size(image: Image.Image) -> tuple[int, int]:
    return max(1, round(image.width * _HEIGHT / image.height)), _HEIGHT


def summary_lines(report: PairReport, measured: Measured) -> Iterator[str]:
    """Yields the report in sentences."""
    families = " and ".join(f"{role} {name}" for role, name in report.family.items() if name)
    yield f"{report.bundle}: {report.task}, {families}."
    rows, total = len(measured.sizes), int(measured.sizes.sum())
    if measured.edge is not None and measured.full is not None:
        yield (
            f"At the edge: {report.share_at_edge:.1%} of {rows} rows; to the full model: {report.bytes_sent:,} of "
            f"{total:,} bytes."
        )
    times = ", ".join(f"{name} {value:.3g} ms" for name, value in report.latency_ms.items() if value is not None)
    yield f"Median times on this machine: {times}."
    if report.quality is not None:
        known = {name: value for name, value in report.quality.items() if value is not None}
        figure = measured.bundle.manifest.task.quality
        yield f"{figure}: {', '.join(f'{name} {value:.4g}' for name, value in known.items())}."
