"""`edge-agent explain REQUEST_ID`: how a request was decided, from the decision log."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from firstline_core.command_line import EXIT_FAILED
from firstline_core.errors import BudgetExceededError, UnauthorizedError
from firstline_core.telemetry.decisions import find
from firstline_core.telemetry.wording import rounded
from firstline_core.types import HEDGED, Reason, Status, Wait
from firstline_edge.cli.output import check_has_run, explained_refusal, print_error, show
from firstline_edge.cli.parser import OK, load_settings
from firstline_edge.state import StatePaths

_TIERS = {"cache": "the result cache", "edge": "this device's model", "cloud": "the gateway"}

_STATUSES = {
    Status.FINAL: "The answer is final.",
    Status.PROVISIONAL: "The answer is provisional; a correction will come under the same id.",
    Status.EXPIRED: "The correction did not come in time; the first answer stands.",
}

_CHANGED = {True: ", which answers otherwise", False: ", which answers the same", None: ""}
_DAMAGED = "The record of the promise was damaged, so no correction will come; the first answer stands."
_REFUSED = "The gateway refused to correct it; the first answer stands."
_UNAUTHORIZED = (
    "The full model was to answer, but the gateway refuses this device's token; this device's answer stood in. "
    "Put a valid token into links.token_file; it is read again at the next try."
)
_FIRST = "The full model was to answer; the caller asked not to wait for it (`wait=first`)."


def command(arguments: argparse.Namespace) -> int:
    """Prints the entries of one request in the decision log."""
    settings = load_settings(arguments)
    check_has_run(settings.state_dir)
    path = StatePaths(settings.state_dir).decisions_path
    with explained_refusal(path, "read"):
        lines = find(path, arguments.request_id)
    if not lines:
        print_error(
            f"The decision log {path} has no request {arguments.request_id}; it is older than the log goes back, "
            "was local_only (these are never logged), or was refused before it had an id. Take the request_id of "
            "an answer."
        )
        return EXIT_FAILED
    show(arguments, lines, (sentence for line in lines for sentence in describe(line)))
    return OK


def describe(line: dict[str, Any]) -> list[str]:
    """Returns one line of the log in sentences; a line without the expected fields is shown as it is."""
    try:
        return _described(line)
    except (KeyError, TypeError, ValueError, OverflowError):
        return [f"{json.dumps(line)}  (this version of edge-agent did not write this line)"]


def _described(line: dict[str, Any]) -> list[str]:
    time_text = datetime.fromtimestamp(line["at"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if line.get("event") == "refused":
        name = " ".join(filter(None, [line["model"], line["version"]]))
        sentences = [f"{time_text}  {name}: refused after {rounded(line['ms'])} ms ({line['code']}). {line['error']}"]
        return sentences + [_attempt(attempt) for attempt in line["attempts"]]
    if line.get("event") == "audited":
        return [f"{time_text}  {_audited(line)}"]
    if line.get("event") == "damaged":
        return [f"{time_text}  {_DAMAGED}"]
    digest = f", model {line['model_digest'][:12]}" if line["model_digest"] else ""
    source = _TIERS[line["tier"]] + digest
    if line.get("event") == "corrected":
        if line["status"] == Status.EXPIRED:
            ending = _REFUSED if line.get("cause") else _STATUSES[Status.EXPIRED]
            return [f"{time_text}  {ending}{_cause(line)}"]
        return [f"{time_text}  Corrected by {source}{_CHANGED[line.get('changed')]}. {_STATUSES[Status.FINAL]}"]
    sentences = [f"{time_text}  {line['model']} {line['version']}: answered in {rounded(line['ms'])} ms by {source}."]
    sentences += [_attempt(attempt) for attempt in line["attempts"]]
    sentences += _variant(line)
    sentences.append(f"  {_why(line)}{_cause(line)}")
    policy_reasons = line.get("policy_reasons", ())
    if policy_reasons and not line["rows"]:
        explanation = Reason(policy_reasons[0]).explanation.format(scores=_scores(line))
        sentences.append(f"  The policy had decided: {explanation}")
    sentences += [_denied(row) for row in line.get("denied", ())]
    if line["rows"]:
        pairs = zip_longest(line["rows"], policy_reasons)
        sentences += [f"  row {number}: {_row(*pair)}" for number, pair in enumerate(pairs)]
    stored = "The promise is on the disk." if line["durable"] else ""
    sentences.append("  " + " ".join(filter(None, [_STATUSES[Status(line["status"])], _certification(line), stored])))
    if "trace_id" in line:
        sentences.append(f"  Trace {line['trace_id']}, span {line['span_id']}.")
    return sentences


def _variant(line: dict[str, Any]) -> list[str]:
    """Returns which of several variants answered, and why not the best one."""
    if not line.get("variant"):
        return []
    why = f", not a better one ({line['variant_why']})" if line.get("variant_why") else ", the best of those held"
    sentences = [f"  The request was assigned the model's variant {line['variant']}{why}."]
    if line.get("sheds"):
        sentences.append(f"  This device was to compute nothing itself ({line['sheds']}).")
    return sentences


_OUTCOMES = {"agreed": "the full model agreed", "disagreed": "the full model disagreed", "lost": "no answer came"}


def _audited(line: dict[str, Any]) -> str:
    drawn = f"drawn with probability {line['propensity']:.3g}, as {line['audit_id']}"
    return f"Row {line['row']} was audited: {_OUTCOMES[line['outcome']]} ({drawn}).{_cause(line)}"


def _certification(line: dict[str, Any]) -> str:
    """Returns why the answer is certified, or why an edge answer that was accepted for its score is not."""
    confident = line["reason"] == Reason.CONFIDENT
    if line["certified"]:
        if confident and line.get("certificate"):
            return f"It is certified: {line['certificate']}."
        return "It is the full model's own."
    return f"It is not certified: {line['uncertified']}." if confident and line.get("uncertified") else ""


def _why(line: dict[str, Any]) -> str:
    reason = Reason(line["reason"])
    if reason is Reason.LINK_DOWN and any(attempt["outcome"] == UnauthorizedError.code for attempt in line["attempts"]):
        return _UNAUTHORIZED
    if reason is Reason.REQUESTED and line.get("wait") == Wait.FIRST:
        return _FIRST
    return reason.explanation.format(scores=_scores(line))


def _denied(row: dict[str, Any]) -> str:
    cost = ", ".join(f"{amount:.4g} {resource}" for resource, amount in row["cost"].items() if amount)
    short = f"; the budget {row['short']} has less than that left" if row["short"] else ""
    return (
        f"  row {row['row']}: asking the full model was worth {row['value']:.3g}, and at {cost} would have had to be "
        f"worth {row['price']:.3g}{short}"
    )


def _cause(line: dict[str, Any]) -> str:
    return f" Why: {line['cause']}" if line.get("cause") else ""


def _attempt(attempt: dict[str, Any]) -> str:
    outcome = "answered" if attempt["outcome"] == "ok" else f"failed ({attempt['outcome']})"
    if attempt["outcome"] == HEDGED:
        outcome = "was asked early and not needed,"
    if attempt["outcome"] == BudgetExceededError.code:
        outcome = "was not asked (budget_exceeded)"
    if attempt["outcome"] == UnauthorizedError.code:
        outcome = "refused this device's token (unauthorized)"
    return f"  {_TIERS[attempt['tier']]} {outcome} after {rounded(attempt['ms'])} ms"


def _scores(line: dict[str, Any]) -> str:
    if line["confidence"] is None or line.get("threshold") is None:
        return ""
    lowest = "lowest score" if line["rows"] else "score"
    stricter = f" or more, by predicted {line['by']}" if line.get("by") else ""
    return f" ({lowest} {line['confidence']:.4f}, accepted from {line['threshold']:.4f}{stricter})"


def _row(row: dict[str, Any], policy_reason: str | None) -> str:
    score = "" if row["confidence"] is None else f", score {row['confidence']:.4f}"
    policy = f" (the policy had decided: {policy_reason})" if policy_reason not in (None, row["reason"]) else ""
    return f"{row['tier']}, {row['reason']}{policy}{score}, {row['status']}"
