"""`edge-agent status`: prints the status of the running agent, which it requests over the agent's API."""

from __future__ import annotations

import argparse
from typing import Any

from firstline_core.errors import CapacityError
from firstline_core.telemetry.wording import counted, rounded, time_text
from firstline_edge.cli.agent_api import NOT_AN_AGENT, agent_status
from firstline_edge.cli.output import print_error, show
from firstline_edge.cli.parser import OK
from firstline_edge.settings.load import load_or_last_good

_LINK_STATES = {"probing": "down, being tried"}
_EVENTS_SHOWN = 8


def command(arguments: argparse.Namespace) -> int:
    """Prints the status of the running agent."""
    settings, _, problem = load_or_last_good(arguments.config, dict(arguments.overrides))
    if problem:
        print_error(problem)
    url, status = agent_status(settings, arguments.url)
    try:
        lines = describe(url, status)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CapacityError(NOT_AN_AGENT.format(url=url)) from error
    show(arguments, {"url": url, **status}, lines)
    return OK


def describe(url: str, status: dict[str, Any]) -> list[str]:
    """Returns the status in lines of text."""
    lines = [
        f"{status['device_id']} {status['version']} at {url}, "
        f"{'ready' if status['ready'] else 'not ready'}, up {status['uptime_s']:.0f} s"
    ]
    for model in status["models"]:
        if model["edge"] is None:
            lines.append(f"model   {model['name']} {model['version']}: all goes to the cloud. {model['problem']}")
        else:
            pace = f"{rounded(model['row_ms'])} ms a row" if model["row_ms"] is not None else "not measured"
            lines.append(
                f"model   {model['name']} {model['version']}: {model['edge']} on {model['provider']}, {pace}, "
                f"{_acceptance(model['threshold'])}{_classes(model.get('certificate'))}"
            )
            if model["problem"]:
                lines.append(f"problem {model['name']} {model['version']}: {model['problem']}")
            lines += [f"        passed over {reason}" for reason in model["passed_over"]]
            if model.get("uncertified"):
                lines.append(f"        not certified: {model['uncertified']}")
            elif (certificate := model.get("certificate")) is not None:
                lines.append(f"        certified: {certificate['promise']}")
            if (contract := model.get("contract")) is not None:
                lines += [f"        {line}" for line in _contract_lines(contract)]
    lines += [f"problem {problem['path']}: {problem['message']}" for problem in status["problems"]]
    if (identity := status.get("identity")) is not None:
        lines.append(
            f"joined  {identity['gateway']} as {identity['device']}, certificate until {identity['not_after']}, "
            f"authority {identity['authority'][:16]}"
        )
    lines += [_link_line(name, link) for name, link in status["links"].items()]
    if not status["links"]:
        lines.append("link    none configured")
    lines += _fleet_lines(status.get("fleet") or {})
    if (policy := status.get("policy", "certified")) != "certified":
        lines.append(f"policy  {policy}")
    lines += [_budget_line(budget) for budget in status.get("budgets", ())]
    outbox, cache = status["outbox"], status["cache"]
    lines.append(f"outbox  {counted(outbox['items'], 'correction')} to come, {counted(outbox['size_bytes'], 'byte')}")
    lines.append(f"cache   {counted(cache['entries'], 'result')} in memory, {counted(cache['size_bytes'], 'byte')}")
    return lines


def _fleet_lines(fleet: dict[str, Any]) -> list[str]:
    lines = []
    if (configuration := fleet.get("configuration")) is not None:
        lines.append(f"fleet   configuration {configuration['name']} version {configuration['version']}")
    if (brake := fleet.get("brake")) is not None:
        until = f" until {time_text(brake['until_s'])}" if brake["until_s"] else ""
        lines.append(
            f"fleet   braked{until}: {brake['used']} of {brake['escalations_per_hour']:g} escalations of this hour "
            f"used; {brake['reason'] or 'no reason was given'}"
        )
    if fleet.get("problem"):
        lines.append(f"problem fleet: the latest report did not reach the gateway. {fleet['problem']}")
    return lines


def _budget_line(budget: dict[str, Any]) -> str:
    price = f"a unit is worth {budget['price']:.3g}" if budget["price"] else "ample"
    return (
        f"budget  {budget['budget']}: {budget['spent']:.10g} of {budget['amount']:.10g} spent, {price}, "
        f"renewed in {budget['ends_in_s'] / 60:.0f} min"
    )


def _acceptance(threshold: float | None) -> str:
    return "no edge answer is accepted" if threshold is None else f"accepted from a score of {threshold:.3g}"


def _contract_lines(contract: dict[str, Any]) -> list[str]:
    """Returns the findings of the audits and the effect of a void certificate."""
    audits = contract["audits"]
    lines = _event_lines(contract["events"])
    disagreed = "with any difference, which is not promised" if lines else "disagreed"
    since = " in a new test," if contract["alarm"] else ","  # a certificate that becomes void begins one
    lines.append(
        f"audits: {audits['drawn']} drawn, {audits['agreed']} agreed, {audits['disagreed']} {disagreed}, "
        f"{audits['lost']} lost; evidence {contract['e_value']:.3g}{since} alarm at {contract['alarm_at']:.3g}"
    )
    if contract["drift"] is not None:
        lines.append(f"scores: {contract['drift']['word']} (stability index {contract['drift']['index']:.2f})")
    if contract["alarm"]:
        if contract["escalates_all"]:
            effect = "no edge answer is accepted"
        elif contract["tightened"]:
            effect = "fewer edge answers are accepted"
        else:
            effect = "edge answers are accepted as before"
        cause = f" ({contract['cause']})" if contract["cause"] else ""
        lines.append(
            f"certificate void since {contract['since']}{cause}: {effect}, at most "
            f"{contract['escalations_per_hour']:.0f} more escalations an hour, until a newly certified bundle comes"
        )
    return lines


def _event_lines(events: dict[str, Any]) -> list[str]:
    """Returns a line for each event of a contract, those with most evidence against them first."""
    most = sorted(events.items(), key=lambda item: item[1]["e_value"], reverse=True)
    lines = [
        f"{name}: {each['lost']} of {counted(each['counted'], 'audit')} in which it can occur, at most "
        f"{100 * each['epsilon']:.4g} % promised; evidence {each['e_value']:.3g}"
        for name, each in most[:_EVENTS_SHOWN]
    ]
    more = len(most) - _EVENTS_SHOWN
    return [*lines, f"and {counted(more, 'event')} more with less evidence"] if more > 0 else lines


def _classes(certificate: dict[str, Any] | None) -> str:
    """Returns the number of classes that have thresholds of their own, if the certificate promises by class."""
    if certificate is None or not certificate.get("by"):
        return ""
    classes = sum(threshold is not None for threshold in certificate["thresholds"].values())
    return f" or more: {classes} of {len(certificate['thresholds'])} classes, each from a score of its own"


def _link_line(name: str, link: dict[str, Any]) -> str:
    problem = f". {link['problem']}" if link["problem"] else ""
    return f"link    {name} {link['address']}: {_LINK_STATES.get(link['state'], link['state'])}{_pace(link)}{problem}"


def _pace(link: dict[str, Any]) -> str:
    """Returns the recent times of a link, and the gateway's share."""
    timing = link.get("timing")
    if timing is None:
        return ""
    service_ms = timing["service_p50_ms"]
    service = f", {rounded(service_ms)} of them in the gateway" if service_ms is not None else ""
    ahead, typical = timing.get("typical_ahead_bytes"), counted(timing["typical_bytes"], "byte")
    behind = f", sent after {counted(ahead, 'byte')} of other requests" if ahead else ""
    return (
        f", {rounded(timing['total_p50_ms'])} ms (95 %: {rounded(timing['total_p95_ms'])}){service}, "
        f"for a request of {typical}{behind}"
    )
