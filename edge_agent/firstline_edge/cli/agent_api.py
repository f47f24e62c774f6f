"""Requests of commands to the running agent over its API."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.protocol.http import error_from
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, check_url, connection_fault, open_client
from firstline_edge.api.access import first_token
from firstline_edge.cli.output import explained_refusal
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths, is_in_use

NOT_AN_AGENT = "The server at {url} is not an edge agent, or has another version; name yours with --url."
_ADVICE = "start it with `edge-agent run`, or name another with --url"
_STATUS_TIMEOUT_S = 5.0


def agent_url(settings: EdgeSettings) -> str | None:
    """Returns the address of the agent with these settings, as it noted it or as configured; None if none runs.

    The note may be left of an agent that was killed, and another process may use its port: the token must not be sent
    there. Only the lock of the state directory ends with the process.

    Raises:
        CapacityError: this user may not read the state directory.
    """
    with explained_refusal(settings.state_dir, "read"):
        if not is_in_use(settings.state_dir):
            return None
        note = StatePaths(settings.state_dir).url_path
        configured = f"http://{settings.api.host}:{settings.api.port}"
        return (note.read_text().strip() if note.exists() else "") or configured


def call_agent(
    settings: EdgeSettings, url: str, method: str, path: str, *, timeout_s: float, advice: str
) -> httpx.Response:
    """Returns the agent's answer with status 200.

    Args:
        settings: name the file with the token.
        url: of the agent.
        method: of the request.
        path: of the request.
        timeout_s: of each step of the exchange.
        advice: what to do if no agent answers.

    Raises:
        ConfigError: the token cannot be read, or the address is not a URL.
        CapacityError: no agent answers.
        FirstlineError: the agent's error.
    """
    token = first_token(settings.api)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with open_client(ClientSettings(url, headers=headers, timeout=timeout_s)) as client:
            response = client.request(method, path)
    except HTTP_FAILURES as error:
        raise CapacityError(f"No agent answers at {url} ({connection_fault(error, url)}); {advice}.") from error
    if response.status_code != 200:
        refusal = error_from(response.status_code, response.content)
        raise type(refusal)(f"{url}: {refusal.message}", retry_after_s=refusal.retry_after_s)
    return response


def agent_status(settings: EdgeSettings, url: str | None = None) -> tuple[str, dict[str, Any]]:
    """Returns the address and the status of the running agent.

    Args:
        settings: of the agent.
        url: its address, if it differs from the one that the settings lead to.

    Raises:
        ConfigError: the token's file cannot be read.
        CapacityError: no agent runs or answers, or the address is not a URL.
        FirstlineError: the agent's error.
    """
    url = url or agent_url(settings)
    if url is None:
        raise CapacityError(
            f"No agent runs with {settings.state_dir}; start it with `edge-agent run`, or name its "
            "settings with --config, or its address with --url."
        )
    try:
        check_url(url)
    except ConfigError as error:
        raise CapacityError(f"--url: {error}") from error
    response = call_agent(settings, url, "GET", "/firstline/v1/status", timeout_s=_STATUS_TIMEOUT_S, advice=_ADVICE)
    try:
        status = orjson.loads(response.content)
    except ValueError as error:
        raise CapacityError(NOT_AN_AGENT.format(url=url)) from error
    if not isinstance(status, dict):
        raise CapacityError(NOT_AN_AGENT.format(url=url))
    return url, status
