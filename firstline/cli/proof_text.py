"""Sentences about what is proved, and about what makes a proof say less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from firstline.cli.output import percent
from firstline.workbench.certify import Certification
from firstline.workbench.event_promises import BrokenPromise, Unpromised
from firstline_core.routing.certificate import event_promise
from firstline_core.routing.contracts import EventsResult
from firstline_core.telemetry.wording import counted

_SHOWN = 12


def promises_text(
    result: EventsResult,
    unpromised: Mapping[str, Unpromised],
    broken: Mapping[str, BrokenPromise] = MappingProxyType({}),
) -> Iterator[str]:
    """Yields what is proved of each event, with the number of observations, and what cannot be promised."""
    if result.threshold is None:
        yield f"Not certified on {result.n} rows; escalate everything."
    else:
        yield (
            f"Certified on {result.n} rows, when an edge answer is accepted at a score of at least "
            f"{result.threshold:.15g}. That accepts {percent(result.kept)}."
        )
    for name, event in result.events.items():
        promise, seen = event_promise(name, event.epsilon, event.delta), counted(event.n, "observation")
        if event.risk_upper is not None:
            yield (
                f"- {promise}. {seen}, of which {percent(event.kept)} are accepted; the upper bound is "
                f"{percent(event.risk_upper)}."
            )
        elif event.n_needed:
            already = _broken_already(broken[name], event.epsilon) if name in broken else ""
            yield f"- Not proved: {promise}. {seen}; at least {event.n_needed:,} more would be needed.{already}"
        elif name in result.alone:
            yield f"- Not proved with the others, but alone it could be: {promise}. {seen} are enough."
        else:
            yield (
                f"- Not proved: {promise}. {seen} are enough, but too many of the answers with high scores break it"
                f"{_broken(broken[name]) if name in broken else ''}."
            )
    if result.alone:
        yield "No threshold serves all promises together. Promise fewer, or weaker ones."
    few = {name: event.n for name, event in unpromised.items() if event.n_needed}
    enough = {name: event.n for name, event in unpromised.items() if not event.n_needed}
    if few:
        yield f"Too few observations for any such promise: {_listed(few)}."
    if enough:
        yield f"Nothing is promised about: {_listed(enough)}."


def _broken(found: BrokenPromise) -> str:
    """Returns counts and advice, as the end of a sentence."""
    least = (
        f"The smallest share that passes this test alone at this confidence is {percent(found.least_epsilon)}"
        if found.least_epsilon is not None
        else "No share up to ten times the promised one passes this test at this confidence"
    )
    return (
        f": {found.lost} of the {counted(found.n, 'observation')} with the highest scores. {least}. Try more data, "
        "another edge model, or a looser promise, which other data should prove"
    )


def _broken_already(found: BrokenPromise, epsilon: float) -> str:
    """Returns a sentence, if too many of too few observations break the promise."""
    if found.lost <= epsilon * found.n:
        return ""
    return (
        f" {found.lost} of the {counted(found.n, 'observation')} with the highest scores break it, so more data would "
        "hardly prove it: try another edge model, or a looser promise, which other data should prove."
    )


def _listed(observations: dict[str, int]) -> str:
    shown = [f"{name} ({counted(n, 'row')})" for name, n in list(observations.items())[:_SHOWN]]
    more = len(observations) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def caveats(certification: Certification) -> Iterator[str]:
    """Yields why what is proved may say less than it seems to: a usual answer, and rows that depend on each other."""
    usual, sequences = certification.usual, certification.sequences
    if usual is not None:
        answer = f"'{usual.answer}'" if usual.answer else "nothing"
        yield (
            f"The full model answers {answer} in {percent(usual.share)} of the rows: a model that always does would "
            "keep this promise. Name an event with --promise, such as one missed."
        )
    rows = len(certification.selection.rest)
    if certification.clustered and certification.result.n < rows:
        yield (
            "Rows of one group, such as a series or a clip, depend on each other, so one of each is evidence: "
            f"{certification.result.n:,} of {counted(rows, 'row')}. More groups prove more."
        )
    if sequences is not None:
        yield (
            f"The rows may depend on each other: {sequences.sign} suggest sequences. Then they count as about "
            f"{counted(sequences.effective, 'observation')}, not {len(certification.selection.scores):,}, and nothing "
            "is proved: name the sequence of each row in a column `group`; then one row of each sequence is evidence."
        )
