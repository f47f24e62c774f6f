"""`edge-agent rollback`: what ran before runs again, on an agent that runs or not, with no network."""

from __future__ import annotations

import argparse
import contextlib
import time
from urllib.parse import quote

from firstline_core.errors import CapacityError, RequestError
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, open_client
from firstline_core.protocol.http_errors import error_from
from firstline_edge.api.tokens import first_token
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.cli.status import address_of
from firstline_edge.fleet.configuration.kept import read_kept, write_kept
from firstline_edge.fleet.updates.history import History
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory

_TIMEOUT_S = 120.0
_ASKED = "Rolled back on the device."


def command(arguments: argparse.Namespace) -> int:
    """Goes back, and says so."""
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    try:
        url = address_of(settings)
    except OSError as error:
        raise CapacityError(
            f"{settings.state_dir} cannot be read: {error.strerror}; ask as the user that the agent runs as."
        ) from error
    model, what = arguments.model, arguments.model or "configuration"
    if url is not None:
        _ask(settings, url, f"updates/{quote(model, safe='')}" if model else "configuration")
    elif model:
        _on_disk(settings, model)
    else:
        _configuration_on_disk(settings)
    if arguments.output == "json":
        say_json({"rolled_back": what})
    else:
        say(f"{what}: what ran before runs again")
    return OK


def _on_disk(settings: EdgeSettings, model: str) -> None:
    with contextlib.closing(StateDirectory(settings.state_dir)) as state:
        try:
            History(state.updates_path).roll_back(model, time.time())
        except OSError as error:
            raise CapacityError(f"{state.updates_path} cannot be written: {error.strerror}.") from error


def _configuration_on_disk(settings: EdgeSettings) -> None:
    with contextlib.closing(StateDirectory(settings.state_dir)) as state:
        try:
            kept = read_kept(state.configuration_path)
            if not kept.can_go_back:
                raise RequestError("There is no configuration to go back from; `edge-agent updates` tells more.")
            write_kept(state.configuration_path, kept.given_up("asked", _ASKED, time.time()))
        except OSError as error:
            raise CapacityError(f"{state.configuration_path} cannot be written: {error.strerror}.") from error


def _ask(settings: EdgeSettings, url: str, what: str) -> None:
    token = first_token(settings.api.token_file, "api.token_file")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with open_client(ClientSettings(url, headers=headers, timeout=_TIMEOUT_S)) as client:
            reply = client.post(f"/firstline/v1/{what}/rollback")
    except HTTP_FAILURES as error:
        raise CapacityError(f"No agent answers at {url} ({error}); stop it, and roll back again.") from error
    if reply.status_code != 200:
        raise error_from(reply.status_code, reply.content)
