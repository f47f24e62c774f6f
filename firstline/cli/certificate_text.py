"""What `firstline certify` has proved, as sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from firstline.cli.output import confidence, percent, table
from firstline.workbench.certify import GroupsResult, Terms
from firstline.workbench.selection import Selection
from firstline_core.routing.certificate import points
from firstline_core.routing.certification import CertificationResult
from firstline_core.telemetry.wording import counted

_UNCERTIFIED_SHOWN = 20


def edge_sentence(result: CertificationResult, terms: Terms) -> str:
    """Returns what is proved of all accepted edge answers together."""
    promise = f"at most {percent(terms.epsilon)} of {_error(terms)}, with confidence {confidence(terms.delta)}"
    if result.threshold is None or result.risk_upper is None:
        return (
            f"Not certified on {result.n} rows that {promise}; escalate everything. Some threshold would have to "
            f"accept at least {counted(result.n_needed, 'more row')} without a single error."
        )
    return _certified(result, promise, "their risk", percent(result.risk_upper))


def other_contract_sentence(result: CertificationResult, terms: Terms) -> str:
    """Returns what is proved of the whole stream, or of each group."""
    sure = f"with confidence {confidence(terms.delta)}"
    if isinstance(result, GroupsResult):
        certified = sum(group.certified for group in result.groups.values())
        share = f"That accepts {percent(result.kept)} of all." if certified else "Escalate everything."
        return (
            f"Certified {certified} of {len(result.groups)} by {result.by} on {result.n} rows: in each, at most "
            f"{percent(terms.epsilon)} of {_error(terms)}, {sure} for all of them together. {share}"
        )
    promise = f"the tiered accuracy is at most {points(terms.epsilon)} below the full model's, {sure}"
    if result.threshold is None or result.risk_upper is None:
        return (
            f"Not certified on {result.n} rows that {promise}; escalate everything. At least "
            f"{counted(result.n_needed, 'more row')} would be needed."
        )
    return _certified(result, promise, "the accuracy given up", points(result.risk_upper))


def _certified(result: CertificationResult, promise: str, bounded: str, upper_bound: str) -> str:
    return (
        f"Certified on {result.n} rows: {promise}, when an edge answer is accepted at a score of at least "
        f"{result.threshold:.15g}. That accepts {percent(result.kept)}; the upper bound of {bounded} is {upper_bound}."
    )


def _error(terms: Terms) -> str:
    verb = "disagree" if terms.contract == "disagreement" else "are wrong where the full model is right"
    return f"the edge answers {verb}"


def groups_text(result: CertificationResult) -> Iterator[str | Table]:
    """Yields a table with a line for each group; of the groups that are not certified, only those closest to it."""
    if not isinstance(result, GroupsResult):
        return
    uncertified = sorted((group.n_needed, name) for name, group in result.groups.items() if not group.certified)
    hidden = {name for _, name in uncertified[_UNCERTIFIED_SHOWN:]}
    rows = (
        (
            name,
            str(group.n),
            "-" if group.threshold is None else f"{group.threshold:.6g}",
            f"{100 * group.kept:.2f}",
            "-" if group.risk_upper is None else f"{100 * group.risk_upper:.3f}",
            str(group.n_needed or ""),
        )
        for name, group in result.groups.items()
        if name not in hidden
    )
    columns = (result.by, ">rows", ">threshold", ">accepted %", ">risk at most %", ">accepted rows missing, at least")
    yield table(*columns, rows=rows)
    if hidden:
        yield f"Nothing is proved of {len(hidden)} more, which miss more accepted rows; -o json has them all."


def selection_sentence(selection: Selection) -> str:
    """Returns which score the rows that were set aside have chosen."""
    best_first = sorted(selection.aurocs.items(), key=lambda item: -item[1])
    compared = ", ".join(f"{name} {area:.3f}" for name, area in best_first) or "too few losses to compare scores"
    # A learned score does not look at the temperature.
    score = selection.score
    temperature = "" if score.learned is not None else f" at temperature {score.temperature:g}"
    return (
        f"{counted(selection.used, 'other row')} decided on the score: {score.kind}{temperature} (AUROC: {compared})."
    )
