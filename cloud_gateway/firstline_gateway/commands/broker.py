"""`broker configure`: the files of a Mosquitto that trusts this gateway's devices."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.command_line import add_group
from firstline_core.errors import ConfigError
from firstline_gateway.commands.base import add_action, show

if TYPE_CHECKING:
    from firstline_core.command_line import Commands


def add_commands(commands: Commands) -> None:
    """Adds it to the parser's."""
    command = add_action(
        add_group(commands, "broker", "configure the MQTT broker"),
        "configure",
        _write,
        "write the files of a Mosquitto broker, as a gateway with [broker] does itself",
        "broker configure --config gateway.toml",
    )
    command.add_argument("directory", nargs="?", metavar="DIR", help="instead of broker.directory")
    command.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="name or address of the broker, may be repeated; instead of broker.hosts",
    )


def _write(arguments: argparse.Namespace) -> int:
    from firstline_gateway.broker import config
    from firstline_gateway.broker.files import broker_folder
    from firstline_gateway.identity.authorities import AuthorityFolder, had_store
    from firstline_gateway.identity.credentials import Credentials, read_changes
    from firstline_gateway.settings.load import load
    from firstline_gateway.settings.settings import BROKER_AUTHORITIES_FILE, BROKER_USER
    from firstline_gateway.tables import open_database

    overrides: dict[str, object] = {"broker.hosts": arguments.host}
    if arguments.directory is not None:
        overrides["broker.directory"] = str(Path(arguments.directory).resolve())
    settings = load(arguments.config, environ=os.environ, overrides=overrides)
    if not settings.broker.directory:
        raise ConfigError("broker.directory is empty; name the folder for the broker's files.")
    folder, now_s, credentials = broker_folder(settings), time.time(), Credentials()
    authority = AuthorityFolder(Path(settings.identity.directory), SYSTEM_CLOCK)
    opened = open_database(settings.store, must_exist=had_store(settings.identity))
    with closing(opened) as database, database.reading() as connection:
        credentials.apply(read_changes(connection, 0))
    folder.refresh(authority.open(), credentials, now_s)
    conf = folder.plan.folder / config.CONFIGURATION
    mqtt = {
        "host": folder.hosts[0],
        "port": folder.plan.gateway_port,
        "username": BROKER_USER,
        "password_file": str(folder.password_file),
        "tls_ca_file": str(folder.path / BROKER_AUTHORITIES_FILE),
    }
    lines = [
        f"start it with: mosquitto -c {conf}",
        "",
        "in gateway.toml, unless it names the folder as broker.directory:",
    ]
    lines += ["[mqtt]", "enabled = true", *(f"{key} = {_toml(value)}" for key, value in mqtt.items())]
    show(arguments, "\n".join(lines), {"configuration": str(conf), "mqtt": mqtt, "devices_port": folder.plan.port})
    return 0


def _toml(value: object) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'
