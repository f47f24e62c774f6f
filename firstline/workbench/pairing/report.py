"""The report of a pair: share at the edge, bytes, latency, quality, and pictures of disagreements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import Struct
from PIL import Image

from firstline.workbench.certify import Certification
from firstline.workbench.evaluate import Evaluation, Measured, figures
from firstline.workbench.event_promises import BrokenPromise, UsualAnswer
from firstline.workbench.pairing.pair import ReadPair
from firstline.workbench.pairing.specification import EDGE, FULL
from firstline.workbench.report_data import disagreements
from firstline.workbench.sequences import Sequences
from firstline_core.errors import ConfigError
from firstline_core.routing.contracts import EventsResult
from firstline_core.storage.files import naming
from firstline_core.telemetry.wording import rounded

_PICTURES = 12
_NAME_CHARACTERS = 50  # of four bytes at most: file systems allow 255 bytes


class TestedContract(Struct, frozen=True):
    """A promise about the edge answers, proved or not.

    Attributes:
        event: such as "missed person"; "" for any disagreement.
        n: observations.
        kept: share of them that is accepted at the edge.
        risk_upper: upper bound; None if it is not proved.
        n_needed: number of additional observations without which no promise can be proved; 0 if there are enough.
    """

    event: str
    epsilon: float
    delta: float
    certified: bool
    n: int
    kept: float
    risk_upper: float | None
    n_needed: int


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
        broken: counts about each promise that was not proved with enough observations, by event.
    """

    bundle: str
    task: str
    family: dict[str, str | None]
    certified: bool
    contracts: tuple[TestedContract, ...]
    share_at_edge: float
    quality: dict[str, float | None] | None
    bytes_sent: int
    latency_ms: dict[str, float | None]
    sequences: Sequences | None
    usual_answer: UsualAnswer | None
    broken: Mapping[str, BrokenPromise]


def report_of(
    pair: ReadPair, measured: Measured, certification: Certification | None, folder: Path, warn: Callable[[str], None]
) -> PairReport:
    """Returns the report.

    Args:
        pair: that was made.
        measured: its models on the data, as certified.
        certification: None for a bundle of one model.
        folder: of the bundle.
        warn: receives a sentence if the data has labels and the quality cannot be measured.
    """
    found = _figures(measured, warn)
    edge, tiered = (found.variants[0].edge, found.variants[0].tiered) if found.variants else (None, None)
    models = {EDGE: edge, FULL: found.full, "tiered": tiered}
    quality = {name: None if one is None else one.quality.get(found.quality) for name, one in models.items()}
    rounded_quality = {name: None if value is None else round(value, 6) for name, value in quality.items()}
    if tiered is not None:
        share_at_edge, bytes_sent = tiered.edge_share, tiered.bytes_sent
    else:  # one model answers everything
        share_at_edge, bytes_sent = (1.0, 0) if edge is not None else (0.0, int(measured.sizes.sum()))
    return PairReport(
        bundle=str(folder),
        task=found.task,
        family={role: pair.models[role].family if role in pair.models else None for role in (EDGE, FULL)},
        certified=certification is not None and certification.certificate is not None,
        contracts=tuple(contracts_of(certification)) if certification is not None else (),
        share_at_edge=round(share_at_edge, 6),
        quality=rounded_quality if any(value is not None for value in quality.values()) else None,
        bytes_sent=bytes_sent,
        latency_ms={name: None if one is None else one.latency_ms.p50 for name, one in models.items()},
        sequences=certification.sequences if certification is not None else None,
        usual_answer=certification.usual if certification is not None else None,
        broken=certification.broken if certification is not None else {},
    )


def _figures(measured: Measured, warn: Callable[[str], None]) -> Evaluation:
    try:
        return figures(measured)
    except ConfigError as error:  # no row has a label, or a package that computes the quality is not installed
        warn(f"The quality was not measured. {error.message}")
        return figures(replace(measured, truth=None))


def contracts_of(certification: Certification) -> Iterator[TestedContract]:
    """Yields the contracts that were tested."""
    result, terms = certification.result, certification.terms
    tested = result.events if isinstance(result, EventsResult) else {"": result}
    for event, one in tested.items():
        bound = terms.events.get(event, terms)
        yield TestedContract(
            event=event,
            epsilon=bound.epsilon,
            delta=bound.delta,
            certified=one.risk_upper is not None,
            n=one.n,
            kept=round(one.kept, 6),
            risk_upper=one.risk_upper,
            n_needed=one.n_needed,
        )


def draw_disagreements(measured: Measured, folder: Path) -> None:
    """Writes pictures of rows in which the models differ, the accepted ones first, edge at the left.

    Writes none if the data are no images. Pictures of an earlier run are deleted, and the folder if it is empty.

    Raises:
        ConfigError: a picture cannot be written or deleted.
    """
    with naming(folder, "written"):
        for earlier in folder.glob("[0-9][0-9]-*.png"):
            earlier.unlink()
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    for edge in measured.edges:
        for number, drawn in enumerate(disagreements(measured, edge, _PICTURES), 1):
            picture = Image.new("RGB", (drawn.edge.width + drawn.full.width, drawn.edge.height))
            picture.paste(drawn.edge, (0, 0))
            picture.paste(drawn.full, (drawn.edge.width, 0))
            decided = "accepted" if drawn.accepted else "escalated"
            file = folder / f"{number:02}-{decided}-{Path(drawn.name).stem[:_NAME_CHARACTERS]}.png"
            with naming(file, "written"):
                folder.mkdir(parents=True, exist_ok=True)
                picture.save(file)


def summary_lines(report: PairReport, measured: Measured) -> Iterator[str]:
    """Yields the report in sentences."""
    families = " and ".join(f"{role} {name}" for role, name in report.family.items() if name)
    yield f"{report.bundle}: {report.task}, {families}."
    rows, total = len(measured.sizes), int(measured.sizes.sum())
    if measured.edges and measured.full is not None:
        yield (
            f"At the edge: {report.share_at_edge:.1%} of {rows} rows; to the full model: {report.bytes_sent:,} of "
            f"{total:,} bytes."
        )
    times = ", ".join(f"{name} {rounded(value)} ms" for name, value in report.latency_ms.items() if value is not None)
    yield f"Median times on this machine: {times}."
    if report.quality is not None:
        known = {name: value for name, value in report.quality.items() if value is not None}
        figure = measured.manifest.task.quality
        yield f"{figure}: {', '.join(f'{name} {value:.4g}' for name, value in known.items())}."
