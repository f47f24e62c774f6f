"""`firstline context`: names for gateways, so that commands need no `--gateway`, `--key-file` and `--ca`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.contexts import SELECTS, Context, contexts_file, read_contexts, write_contexts
from firstline.cli.options import GATEWAY, GatewayOptions, check_name, same_gateway
from firstline.cli.output import table, warn
from firstline_core.errors import ConfigError
from firstline_core.storage.secrets import read_secret

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.client.connection import base_url, verification

app = command_group("Name gateways, and choose the one that commands use.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)]


@command(app, "create", example="firstline context create factory --gateway https://gateway:8080 --key-file ops.key")
def create(name: NameArgument, gateway: GatewayOptions) -> Report:
    """Create or replace a context, and use it. The file names the key's file, and contains no secret."""
    check_name(name, "The context's name")
    files = (str(Path(file).expanduser().absolute()) if file else "" for file in (gateway.key_file, gateway.ca_file))
    if not gateway.url:
        raise ConfigError(f"Name the gateway of the context {name} with --gateway URL.")
    url = str(base_url(gateway.url)).rstrip("/")
    read_secret(gateway.key_file, "--key-file", "the API key")
    verification(gateway.ca_file)
    contexts = read_contexts()
    contexts.contexts[name] = Context(url, *files)
    contexts.current = name
    write_contexts(contexts)
    _warn_of_override(name, url)
    return _report(name, contexts.contexts[name], f"The context {name} is in use; it is stored in {contexts_file()}.")


@command(app, "use", example="firstline context use factory")
def use(name: NameArgument) -> Report:
    """Use a context from now on; FIRSTLINE_CONTEXT selects another one for a single command."""
    contexts = read_contexts()
    found = contexts.get(name)
    contexts.current = name
    write_contexts(contexts)
    _warn_of_override(name, found.gateway)
    return _report(name, found, f"The context {name} is in use: {found.gateway}.")


@command(app, "list", example="firstline context list")
def list_contexts() -> Report:
    """List the contexts; * marks the one in use."""
    contexts = read_contexts()
    used = os.environ.get(SELECTS, "") or contexts.current
    rows = (
        ("*" * (name == used), name, context.gateway, context.key_file or "-", context.ca or "-")
        for name, context in sorted(contexts.contexts.items())
    )
    return Report(
        {"current": used, "contexts": contexts.contexts}, table("", "context", "gateway", "key file", "CA", rows=rows)
    )


@command(app, "get", example="firstline context get factory")
def get(name: NameArgument) -> Report:
    """Show a context."""
    found = read_contexts().get(name)
    text = (f"gateway  {found.gateway}", f"key file {found.key_file or '-'}", f"CA       {found.ca or '-'}")
    return _report(name, found, "\n".join(text))


@command(app, "delete", example="firstline context delete factory")
def delete(name: NameArgument) -> Report:
    """Delete a context; the files that it names stay."""
    contexts = read_contexts()
    found = contexts.get(name)
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = ""
    write_contexts(contexts)
    return _report(name, found, f"The context {name} is deleted.")


def _warn_of_override(name: str, url: str) -> None:
    """Warns if the environment names another gateway or context, which commands use instead of the current one."""
    if (other := os.environ.get(GATEWAY, "")) and not same_gateway(other, url):
        warn(f"{GATEWAY} is set, so commands use {other} and not the context {name}; unset it to use the context.")
    elif (selected := os.environ.get(SELECTS, "")) and selected != name:
        warn(f"{SELECTS} is set, so commands use the context {selected} and not {name}; unset it to use {name}.")


def _report(name: str, context: Context, text: str) -> Report:
    return Report({"name": name, "gateway": context.gateway, "key_file": context.key_file, "ca": context.ca}, text)
