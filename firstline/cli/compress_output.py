"""The output of `firstline compress`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.table import Table

from firstline.cli.output import confidence, percent, size, table
from firstline.workbench.compress.candidates import Candidate
from firstline.workbench.compress.compression import Compression
from firstline.workbench.compress.costs import Target
from firstline.workbench.compress.judge import Figures
from firstline.workbench.compress.next_version import Preference
from firstline_core.bundle.manifest import Manifest, Model
from firstline_core.hardware.readings import Absent, Modelled, Reading
from firstline_core.profile.summary import DISTURBED


def as_json(found: Compression, taken: list[str], after: Manifest | None, version: int | None) -> dict[str, object]:
    """Returns the result as a JSON object.

    Args:
        found: the result.
        taken: ids of the candidates that are taken.
        after: the next version's manifest, if something is taken.
        version: its number, if it was written.
    """
    return {
        "source": found.source.id,
        "target": found.target,
        "waited_share": found.waited_share,
        "promise": found.rule.promise,
        "max_loss": found.rule.max_loss,
        "loss_delta": found.rule.loss_delta,
        "loss_proved": found.rule.confidence is not None,
        "rows": dict(zip(("make", "judge", "certify"), found.rows, strict=True)),
        "there": found.existing,
        "unmeasured": found.unmeasured,
        "certified_accuracy": found.certified_accuracy,
        "candidates": [
            {
                "id": one.model.id if one.model is not None else None,
                "technique": one.technique,
                "figures": one.figures,
                "accepted": one.verdict is not None and one.verdict.accepted,
                "reasons": _reasons(found, one),
                "times_better": one.verdict.times_better if one.verdict is not None else {},
                "provenance": one.model.provenance if one.model is not None else None,
            }
            for one in found.candidates
        ],
        "taken": taken,
        "order": [model.id for model in after.edge] if after is not None else None,
        "version": version,
    }


def found_text(found: Compression) -> Iterator[str | Table]:
    """Yields the figures of all models, and the verdict on each candidate with its reasons."""
    make, judge, certify = found.rows
    promise = found.rule.promise
    yield (
        f"Made of {found.source.id} on {make} images, judged on {judge}, certified on {certify}: at most "
        f"{percent(promise.epsilon)} {promise.contract}, with confidence {percent(1 - promise.delta)}.\n"
        f"Points lost are against {found.source.id} on the judging images: as seen, and at most, with confidence "
        f"{confidence(found.rule.loss_delta)} for all candidates together; "
        f"{'the most' if found.rule.confidence is not None else 'what was seen'} decides."
    )
    costs = (">p50 ms", *((">mJ", "on") if found.target is not None else ()), ">bytes")
    rows = [(*_row(figures, found), "there") for figures in found.existing]
    rows += [(*_row(one.figures, found), _verdict(one)) for one in found.candidates if one.figures]
    yield table("model", ">accuracy", ">points lost", ">at most", ">on new rows", *costs, ">kept", "verdict", rows=rows)
    if found.target is not None:
        yield _of_target(found, found.target)
    yield from (f"{name} is no rival: {why.removesuffix('.')}." for name, why in found.unmeasured.items())
    for one in found.candidates:
        name = one.model.id if one.model is not None else one.technique
        reasons = "; ".join(reason.removesuffix(".") for reason in _reasons(found, one))
        yield f"{name} is {_verdict(one)}: {reasons}."


def order_text(edge: Sequence[Model], taken: Collection[str], prefer: Preference) -> Iterator[str]:
    """Says for each taken variant that is not the first one which devices do not get it."""
    names = [model.id for model in edge]
    others = ", ".join(one for one in Preference if one is not prefer)
    for position, name in enumerate(names):
        if name in taken and position > 0:
            yield (
                f"{name} comes after {', '.join(names[:position])}: a device takes the first that it can load, and "
                f"the others only if it adapts. The order is by {prefer}; --prefer names another ({others})."
            )


def _reasons(found: Compression, one: Candidate) -> tuple[str, ...]:
    if one.verdict is None:
        return (one.failed,)
    on_target = " and runs there" if found.unmeasured else ""
    return one.verdict.reasons or (f"nothing that is there is as accurate{on_target}",)


def _verdict(one: Candidate) -> str:
    if one.verdict is None:
        return "not made" if one.model is None else "not judged"
    return "accepted" if one.verdict.accepted else "refused"


def _row(figures: Figures, found: Compression) -> tuple[str, ...]:
    kept = "-" if figures.kept is None else percent(figures.kept)
    on_target = (_energy(figures.energy_mj), figures.ran) if found.target is not None else ()
    lost = (
        ("-", "-")
        if figures.loss is None
        else [f"{100 * one:.2f}" for one in (figures.loss.seen, figures.loss.at_most)]
    )
    accuracies = percent(figures.accuracy), *lost, percent(found.certified_accuracy[figures.id])
    return figures.id, *accuracies, _milliseconds(figures), *on_target, size(figures.size_bytes), kept


def _milliseconds(figures: Figures) -> str:
    """With a question mark if other work disturbed it."""
    if figures.latency_ms is None:
        return "-"
    return f"{figures.latency_ms:.4g}{'' if figures.latency_known else ' ?'}"


def _energy(reading: Reading | None) -> str:
    if reading is None or isinstance(reading, Absent):
        return "absent"
    return f"{reading.value:.3g}{' (modelled)' if isinstance(reading, Modelled) else ''}"


def _of_target(found: Compression, target: Target) -> str:
    """The source of latency and energy."""
    sentences = [
        f"Latency is of '{target.machine}', "
        + ("measured now, in turns, each model in its best way." if target.here else "as its profile has it.")
    ]
    measured = [*found.existing, *(one.figures for one in found.candidates if one.figures is not None)]
    energy = next((one.energy_mj for one in measured if one.energy_mj is not None), None)
    if isinstance(energy, Absent):
        sentences.append(f"Energy is absent: {energy.reason}")
    elif energy is not None:
        sentences.append(f"Energy is {type(energy).__name__.lower()}: {energy.source}.")
    if found.waited_share > DISTURBED:
        sentences.append(
            f"Other work had the core for up to {percent(round(found.waited_share, 2))} of a measurement; what waited "
            f"for more than {percent(DISTURBED)} is marked ?, and does not count."
        )
    return " ".join(sentences)
