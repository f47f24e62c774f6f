"""`edge-agent status`: asks the running agent over its API."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from firstline_core.errors import ConfigError
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, open_client
from firstline_core.protocol.http_errors import error_from
from firstline_core.telemetry.wording import counted
from firstline_edge.api.tokens import first_token
from firstline_edge.cli.output import complain, say, say_json
from firstline_edge.cli.parser import FAILED, OK
from firstline_edge.settings.last_good import load_or_last_good
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import is_in_use, url_path

_TIMEOUT_S = 5.0
_NO_AGENT = "What answers at {url} is no edge agent, or one of another version; name yours with --url."


class UnreachableError(Exception):
    """No agent's status can be had; the message is for people."""


def command(arguments: argparse.Namespace) -> int:
    """Prints how the running agent is."""
    settings, _, trouble = load_or_last_good(arguments.config, dict(arguments.overrides))
    if trouble:
        complain(trouble)
    try:
        url, found = running(settings, arguments.url)
        lines = describe(url, found)
    except UnreachableError as error:
        complain(str(error))
        return FAILED
    except (KeyError, TypeError, AttributeError):
        complain(_NO_AGENT.format(url=url))
        return FAILED
    if arguments.output == "json":
        say_json({"url": url, **found})
    else:
        for line in lines:
            say(line)
    return OK


def running(settings: EdgeSettings, url: str | None = None) -> tuple[str, dict[str, Any]]:
    """The address and the status of the running agent.

    Args:
        settings: the agent's.
        url: its address, if not the one that the settings lead to.

    Raises:
        UnreachableError: none runs, or none answers.
        ConfigError: the token's file cannot be read.
    """
    token = first_token(settings.api.token_file, "api.token_file")
    try:
        url = url or address_of(settings)
    except OSError as error:
        raise UnreachableError(
            f"{settings.state_dir} cannot be read: {error.strerror}; run this as the agent's user, or use --url."
        ) from error
    if url is None:
        raise UnreachableError(
            f"No agent runs with {settings.state_dir}; start it with `edge-agent run`, or name one with --url."
        )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with open_client(ClientSettings(url, headers=headers, timeout=_TIMEOUT_S)) as client:
            response = client.get("/firstline/v1/status")
    except (*HTTP_FAILURES, ConfigError) as error:
        raise UnreachableError(
            f"No agent answers at {url} ({error}); start it with `edge-agent run`, or name another with --url."
        ) from error
    if response.status_code != 200:
        raise UnreachableError(f"{url}: {error_from(response.status_code, response.content).message}")
    try:
        found = orjson.loads(response.content)
    except ValueError as error:
        raise UnreachableError(_NO_AGENT.format(url=url)) from error
    if not isinstance(found, dict):
        raise UnreachableError(_NO_AGENT.format(url=url))
    return url, found


def address_of(settings: EdgeSettings) -> str | None:
    """Where the agent of these settings listens, as it noted itself, or as configured; None where none runs.

    A note may be left of an agent that was killed, and its port be somebody else's by now: the token must not go
    there. Only the state directory's lock ends with the process.

    Raises:
        OSError: this user may not look.
    """
    if not is_in_use(settings.state_dir):
        return None
    noted = url_path(settings.state_dir)
    configured = f"http://{settings.api.host}:{settings.api.port}"
    return (noted.read_text().strip() if noted.exists() else "") or configured


def describe(url: str, status: dict[str, Any]) -> list[str]:
    """The status in words."""
    lines = [
        f"{status['device_id']} {status['version']} at {url}, "
        f"{'ready' if status['ready'] else 'not ready'}, up {status['uptime_s']:.0f} s"
    ]
    for model in status["models"]:
        if model["edge"] is None:
            lines.append(f"model   {model['name']} {model['version']}: all goes to the cloud. {model['problem']}")
        else:
            pace = f"{model['row_ms']:.3g} ms a row" if model["row_ms"] is not None else "not measured"
            lines.append(
                f"model   {model['name']} {model['version']}: {model['edge']} on {model['provider']}, {pace}, "
                f"{_kept(model['threshold'])}{_by(model.get('certificate'))}"
            )
            if model["problem"]:
                lines.append(f"problem {model['name']} {model['version']}: {model['problem']}")
            lines += [f"        passed over {reason}" for reason in model["passed_over"]]
            if model.get("uncertified"):
                lines.append(f"        not certified: {model['uncertified']}")
            elif (certificate := model.get("certificate")) is not None:
                lines.append(f"        certified: {certificate['promise']}")
            if (contract := model.get("contract")) is not None:
                lines += [f"        {said}" for said in _contract_lines(contract)]
    lines += [f"problem {found['path']}: {found['message']}" for found in status["problems"]]
    if (identity := status.get("identity")) is not None:
        lines.append(
            f"joined  {identity['gateway']} as {identity['device']}, certificate until {identity['not_after']}, "
            f"authority {identity['authority'][:16]}"
        )
    lines += [_link_line(name, link) for name, link in status["links"].items()]
    if not status["links"]:
        lines.append("link    none configured")
    if (configuration := (status.get("fleet") or {}).get("configuration")) is not None:
        lines.append(f"fleet   configuration {configuration['name']} version {configuration['version']}")
    if (policy := status.get("policy", "certified")) != "certified":
        lines.append(f"policy  {policy}")
    lines += [_budget_line(budget) for budget in status.get("budgets", ())]
    outbox, cache = status["outbox"], status["cache"]
    lines.append(f"outbox  {counted(outbox['items'], 'correction')} to come, {counted(outbox['size_bytes'], 'byte')}")
    lines.append(f"cache   {counted(cache['entries'], 'result')} in memory, {counted(cache['size_bytes'], 'byte')}")
    return lines


def _budget_line(budget: dict[str, Any]) -> str:
    price = f"a unit is worth {budget['price']:.3g}" if budget["price"] else "ample"
    return (
        f"budget  {budget['budget']}: {budget['spent']:.10g} of {budget['amount']:.10g} spent, {price}, "
        f"anew in {budget['ends_in_s'] / 60:.0f} min"
    )


def _kept(threshold: float | None) -> str:
    return "no answer is kept" if threshold is None else f"kept from a score of {threshold:.3g}"


def _contract_lines(contract: dict[str, Any]) -> list[str]:
    """Returns the findings of the audits and the effect of an alarm."""
    audits = contract["audits"]
    lines = [
        f"audits: {audits['drawn']} drawn, {audits['agreed']} agreed, {audits['disagreed']} disagreed, "
        f"{audits['lost']} lost; evidence {contract['e_value']:.3g}, alarm at {contract['alarm_at']:.3g}"
    ]
    if contract["drift"] is not None:
        lines.append(f"scores: {contract['drift']['word']} (stability index {contract['drift']['index']:.2f})")
    if contract["alarm"]:
        kept = "no answer is kept" if contract["escalates_all"] else "fewer answers are kept"
        kept = "answers are kept as before" if not contract["escalates_all"] and not contract["tightened"] else kept
        lines.append(
            f"alarm since {contract['since']}: {kept}, at most {contract['escalations_per_hour']:.0f} more escalations "
            "an hour, until a newly certified bundle comes"
        )
    return lines


def _by(certificate: dict[str, Any] | None) -> str:
    """That thresholds differ, where a certificate promises by class."""
    if certificate is None or not certificate.get("by"):
        return ""
    kept = sum(threshold is not None for threshold in certificate["thresholds"].values())
    return f" or more: {kept} of {len(certificate['thresholds'])} classes are kept, each from a score of its own"


_LINK_WORDS = {"probing": "down, being tried"}


def _link_line(name: str, link: dict[str, Any]) -> str:
    problem = f". {link['problem']}" if link["problem"] else ""
    return f"link    {name} {link['address']}: {_LINK_WORDS.get(link['state'], link['state'])}{_pace(link)}{problem}"


def _pace(link: dict[str, Any]) -> str:
    """Returns the recent times of a link, and the gateway's share."""
    timing = link.get("timing")
    if timing is None:
        return ""
    service_ms = timing["service_p50_ms"]
    service = f", {service_ms:.3g} of them in the gateway" if service_ms is not None else ""
    behind = f" behind {ahead} others" if (ahead := timing.get("typical_ahead_bytes")) else ""
    return (
        f", {timing['total_p50_ms']:.3g} ms (95 %: {timing['total_p95_ms']:.3g}){service}, "
        f"for {timing['typical_bytes']} bytes{behind}"
    )
