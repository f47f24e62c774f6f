"""`edge-agent purge`: erases what was kept, of an agent that runs or not."""

from __future__ import annotations

import argparse
import contextlib
import secrets

from firstline_core.errors import CapacityError
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, open_client
from firstline_core.protocol.http_errors import error_from
from firstline_edge.api import erasure as purge
from firstline_edge.api.tokens import first_token
from firstline_edge.cli.output import say, say_json
from firstline_edge.cli.parser import OK
from firstline_edge.cli.status import address_of
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StateDirectory, leave_proof, proof_path

_TIMEOUT_S = 600.0  # a slow card, and much to overwrite


def command(arguments: argparse.Namespace) -> int:
    """Erases, or says what there is to erase."""
    settings = load(arguments.config, overrides=dict(arguments.overrides))
    places = list(dict.fromkeys(arguments.what or purge.PLACES))
    try:
        before = purge.sizes_bytes(settings.state_dir)
        if arguments.yes:
            _erase(settings, places)
        after = purge.sizes_bytes(settings.state_dir)
    except OSError as error:
        raise CapacityError(
            f"{settings.state_dir} cannot be erased: {error.strerror}; run this as the agent's user."
        ) from error
    if arguments.output == "json":
        counts = {place: {"before_bytes": before[place], "after_bytes": after[place]} for place in places}
        say_json({"state_dir": str(settings.state_dir), "erased": arguments.yes, "places": counts})
        return OK
    for place in places:
        say(f"{place:10}{before[place]} bytes" + (f", {after[place]} now" if arguments.yes else ""))
    if not arguments.yes:
        say("nothing was erased; add --yes to erase this, promised corrections included")
    return OK


def _erase(settings: EdgeSettings, places: list[str]) -> None:
    url = address_of(settings)
    if url is None:
        with contextlib.closing(StateDirectory(settings.state_dir)) as state:
            purge.erase_files(state.path, places)
        return
    token = first_token(settings.api.token_file, "api.token_file")
    proof = secrets.token_urlsafe(32)
    leave_proof(settings.state_dir, proof)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with open_client(ClientSettings(url, headers=headers, timeout=_TIMEOUT_S)) as client:
            reply = client.post("/firstline/v1/purge", json={"places": places, "proof": proof})
    except HTTP_FAILURES as error:
        raise CapacityError(f"No agent answers at {url} ({error}); stop it, and purge again.") from error
    finally:
        proof_path(settings.state_dir).unlink(missing_ok=True)
    if reply.status_code != 200:
        raise error_from(reply.status_code, reply.content)
