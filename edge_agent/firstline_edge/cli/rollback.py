"""`edge-agent rollback`: what ran before runs again, on an agent that runs or not, with no network."""

from __future__ import annotations

import argparse
import contextlib
import time
from urllib.parse import quote

from firstline_core.errors import CapacityError
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, open_client
from firstline_core.protocol.http_errors import error_from
from firstline_core.storage.structs import write_struct
from firstline_edge.api.tokens import first_token
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.cli.status import address_of
from firstline_edge.fleet.configuration.configuration_store import read_state
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.fleet.updates.state_machine import BY_REQUEST
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory

_TIMEOUT_S = 120.0
_MESSAGE = "Rolled back on the device."


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
    else:
        _on_disk(settings, model)
    if arguments.output == "json":
        say_json({"rolled_back": what})
    else:
        say(f"{what}: what ran before runs again")
    return OK


def _on_disk(settings: EdgeSettings, model: str | None) -> None:
    with contextlib.closing(StateDirectory(settings.state_dir)) as state:
        path = state.updates_path if model else state.configuration_path
        try:
            if model:
                store = ModelStore(path)
                store.check_rollback(model)
                store.roll_back(model, BY_REQUEST, _MESSAGE, time.time())
            else:
                configuration = read_state(path)
                configuration.check_rollback()
                write_struct(path, configuration.rolled_back(BY_REQUEST, _MESSAGE, time.time()))
        except OSError as error:
            raise CapacityError(f"{path} cannot be written: {error.strerror}.") from error


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
