"""`status`: ask a running gateway for its state."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from firstline_core.command_line import Commands
from firstline_core.errors import ConfigError
from firstline_core.protocol.loopback import is_loopback
from firstline_core.protocol.sockets import host_and_port
from firstline_core.telemetry.wording import counted
from firstline_gateway.commands.base import add_action, settings_of, show

_TIMEOUT_S = 5.0
_ALARMS_SHOWN = 10
# Batches that have run for less are not listed one by one.
_LONG_S = 1.0


def add_commands(commands: Commands) -> None:
    """Adds it to the parser's."""
    status = add_action(
        commands, "status", _status, "ask a running gateway for its state", "status https://gateway:8080 --ca ca.pem"
    )
    status.add_argument("url", nargs="?", metavar="URL", help="(default: what --config says, on this machine)")
    status.add_argument("--ca", type=Path, metavar="FILE", help="CA certificate used to verify an https:// URL (PEM)")


def _status(arguments: argparse.Namespace) -> int:
    from firstline_core.fleet.rest import CONTRACTS_PATH
    from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, connection_fault, open_client
    from firstline_core.protocol.tls import verifying_context

    url, ca = (arguments.url, arguments.ca) if arguments.url is not None else _configured(arguments)
    token = os.environ.get("FIRSTLINE_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    verify = True if ca is None else verifying_context(ca, "--ca")
    found: dict[str, Any] = {"url": url, "live": False, "ready": False}
    fault = ""
    try:
        settings = ClientSettings(url, headers=headers, tls=verify, timeout=_TIMEOUT_S, use_environment=True)
        with open_client(settings) as client:
            found["live"] = client.get("/v2/health/live").is_success
            found["ready"] = client.get("/v2/health/ready").is_success
            if (reply := client.get("/firstline/v1/models")).is_success:
                found["models"] = reply.json()["models"]
            if (reply := client.get("/firstline/v1/executors")).is_success and (several := reply.json()["executors"]):
                found["executors"] = several
            if (reply := client.get("/firstline/v1/store")).is_success:
                found["store"] = reply.json()
            if (reply := client.get("/firstline/v1/webhooks")).is_success:
                found["webhooks"] = reply.json()["webhooks"]
            if (reply := client.get(CONTRACTS_PATH)).is_success:
                found |= {name: reply.json()[name] for name in ("contracts", "device_alarms")}
        lines = _lines(found, has_token=bool(token))
    except (JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        fault = "another program answers"
    except (*HTTP_FAILURES, ConfigError, ValueError) as error:
        fault = connection_fault(error, url)
    if fault:
        found["error"] = f"{url} does not answer as a gateway: {fault}; is it running there?"
        lines = [found["error"]]
    show(arguments, "\n".join(lines), found)
    return 0 if found["ready"] and not fault else 1


def _lines(found: dict[str, Any], *, has_token: bool) -> list[str]:
    lines = [f"live: {_yes(found['live'])}", f"ready: {_yes(found['ready'])}"]
    if "models" in found:
        lines += [f"model: {model['name']} version {model['version']}" for model in found["models"]]
    else:
        advice = "a key with the scope infer shows them" if has_token else "set FIRSTLINE_TOKEN to see them"
        lines.append(f"models: {advice}")
    lines += executor_lines(found.get("executors", []))
    if "store" in found:
        lines.append(f"store: {found['store']['problem'] or found['store']['database']}")
    for webhook in found.get("webhooks", []):
        state = webhook["problem"] or ("up" if webhook["delivered"] else "nothing delivered yet, so not tested")
        lines.append(f"webhook: {webhook['name']}: {state}")
    if "contracts" in found:
        lines += [_contract_line(contract) for contract in found["contracts"]]
        lines += _device_alarm_lines(found["device_alarms"])
    elif "models" in found:
        lines.append("contracts: a key with the scope fleet shows them")
    return lines


def executor_lines(executors: list[dict[str, Any]]) -> list[str]:
    """Returns the lines of the executors: share of answered batches, state, state of each model, warnings."""
    answered = {each["name"]: each["batches"].get("answered", 0) for each in executors}
    lines = []
    for each in executors:
        share = answered[each["name"]] / max(1, sum(answered.values()))
        versions = Counter(model["model"] for model in each["paces"])
        models = [
            _on_executor(model, of_all=each["problem"], with_version=versions[model["model"]] > 1)
            for model in each["paces"]
        ]
        facts = [f"{share:.0%} of batches", f"{each['under_way']} under way", *models]
        lines.append(f"executor: {each['name']}: {each['problem'] or 'up'} ({', '.join(facts)})")
    return lines


def _on_executor(model: dict[str, Any], *, of_all: str, with_version: bool) -> str:
    """Describes one model on one executor, without a problem of all models."""
    version = f" {model['version']}" if with_version else ""
    text = f"{model['model']}{version} at {model['pace']:.2g} times its usual seconds"
    if (oldest_s := model.get("oldest_s", 0.0)) >= _LONG_S:
        text += f" with a batch under way for {oldest_s:.0f} s"
    problem = "" if of_all else model.get("problem", "")
    return f"{text}: {problem}" if problem else text


def _configured(arguments: argparse.Namespace) -> tuple[str, Path | None]:
    """Returns the URL of the gateway with these settings, and the file of the authority that verifies it."""
    found = settings_of(arguments)
    local, hosts = found.api.host if is_loopback(found.api.host) else "127.0.0.1", found.tls.hosts
    if not found.tls.enabled:
        return f"http://{host_and_port(local, found.api.port)}", arguments.ca
    # By a name that its certificate has.
    host = local if local in hosts or not hosts else hosts[0]
    own = Path(found.identity.directory) / "authorities.pem"
    issued = Path(found.tls.ca_file) if found.tls.ca_file else own if not found.tls.certificate_file else None
    return f"https://{host_and_port(host, found.api.port)}", arguments.ca or issued


def _contract_line(contract: dict[str, Any]) -> str:
    since = contract["alarmed_since"]
    state = f"BROKEN since {since}" if since else "no alarm so far"
    devices = counted(contract["devices"], "device")
    return f"contract: {_variant_words(contract)}: {state}; {contract['finding']}; {devices}"


def _device_alarm_lines(alarms: list[dict[str, Any]]) -> list[str]:
    under_way = [alarm for alarm in alarms if alarm["ended"] is None]
    lines = [
        f"device alarm: {_variant_words(alarm)}: {alarm['device']}, "
        f"{alarm['event'] + ', ' if alarm['event'] else ''}by its own audits, since {alarm['since']}"
        for alarm in under_way[:_ALARMS_SHOWN]
    ]
    more = len(under_way) - _ALARMS_SHOWN
    return [*lines, f"device alarms: {more} more"] if more > 0 else lines


def _variant_words(found: dict[str, Any]) -> str:
    return f"{found['bundle']} version {found['version']} {found['variant'] or found['edge_digest']}"


def _yes(value: object) -> str:
    return "yes" if value else "no"
