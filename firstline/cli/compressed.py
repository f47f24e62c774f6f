"""What `firstline compress` says of what it found."""

from __future__ import annotations

import typer

from firstline.cli.output import confidence, percent, print_table, size, table
from firstline.workbench.compress.compression import Compression
from firstline.workbench.compress.judge import Figures
from firstline.workbench.compress.making import Candidate
from firstline.workbench.compress.target import Target
from firstline_core.hardware.readings import Absent, Modelled, Reading
from firstline_core.profile.words import DISTURBED


def as_json(found: Compression, taken: list[str], version: int | None) -> dict[str, object]:
    return {
        "source": found.source.id,
        "target": found.target,
        "waited_share": found.waited_share,
        "promise": found.promise,
        "max_loss": found.max_loss,
        "loss_delta": found.loss_delta,
        "loss_proved": found.proved,
        "rows": dict(zip(("make", "judge", "certify"), found.rows, strict=True)),
        "there": found.there,
        "certified_accuracy": found.certified_accuracy,
        "candidates": [
            {
                "id": one.model.id if one.model is not None else None,
                "technique": one.technique,
                "figures": one.figures,
                "accepted": one.verdict is not None and one.verdict.accepted,
                "reasons": one.verdict.reasons if one.verdict is not None else (one.failed,),
                "provenance": one.model.provenance if one.model is not None else None,
            }
            for one in found.candidates
        ],
        "taken": taken,
        "version": version,
    }


def print_found(found: Compression) -> None:
    make, judge, certify = found.rows
    promise = found.promise
    typer.echo(
        f"Made of {found.source.id} on {make} images, judged on {judge}, certified on {certify}: at most "
        f"{percent(promise.epsilon)} {promise.contract}, with confidence {percent(1 - promise.delta)}.\n"
        f"Points lost are against {found.source.id} on the judging images: as seen, and at most, with confidence "
        f"{confidence(found.loss_delta)} for all candidates together; "
        f"{'the most' if found.proved else 'what was seen'} decides."
    )
    aimed = found.target is not None
    costs = (">p50 ms", *((">mJ", "on") if aimed else ()), ">bytes")
    made = table("model", ">accuracy", ">points lost", ">at most", ">on new rows", *costs, ">kept", "verdict")
    for there in found.there:
        made.add_row(*_row(there, found), "there")
    for one in found.candidates:
        made.add_row(*_row(one.figures, found), _verdict(one)) if one.figures else None
    print_table(made)
    if found.target is not None:
        typer.echo(_of_target(found, found.target))
    for one in found.candidates:
        name = one.model.id if one.model is not None else one.technique
        reasons = one.verdict.reasons if one.verdict is not None else (one.failed,)
        typer.echo(f"{name} is {_verdict(one)}: {'; '.join(reasons) or 'nothing that is there is as accurate'}.")


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
    return figures.id, *accuracies, f"{figures.latency_ms:.4g}", *on_target, size(figures.size_bytes), kept


def _energy(reading: Reading | None) -> str:
    if reading is None or isinstance(reading, Absent):
        return "absent"
    return f"{reading.value:.3g}{' (modelled)' if isinstance(reading, Modelled) else ''}"


def _of_target(found: Compression, target: Target) -> str:
    """Whence latency and energy come."""
    said = [
        f"Latency is of '{target.machine}', "
        + ("measured now, in turns, each model in its best way." if target.here else "as its profile has it.")
    ]
    energy = found.there[0].energy_mj
    if isinstance(energy, Absent):
        said.append(f"Energy is absent: {energy.reason}")
    elif energy is not None:
        said.append(f"Energy is {type(energy).__name__.lower()}: {energy.source}.")
    if found.waited_share > DISTURBED:
        said.append(f"Other work had the core for up to {percent(round(found.waited_share, 2))} of a measurement.")
    return " ".join(said)
