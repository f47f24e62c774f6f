"""The command line and its exit codes. Imports nothing that may be absent."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.command_line import Commands, Parser, add_command, add_group

if TYPE_CHECKING:
    from firstline_edge.settings.settings import EdgeSettings

OK = 0

_MAX_COUNT = 1024

_EPILOG = """\
exit codes:
  0  done; `run` ends with it after SIGTERM or SIGINT, also while it starts
  1  failure: the port is taken, no agent answers, no such request, doctor found an error
  2  the command line or the configuration is invalid; one sentence on stderr says why
  130  another command than `run` was interrupted with Ctrl-C

every setting can also come from the environment, FIRSTLINE_EDGE_SECTION__KEY, e.g. FIRSTLINE_EDGE_API__PORT=9000,
and from a flag, which wins: --set api.port=9000; lists are JSON: --set 'models.directories=["/var/lib/models"]'
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; ends the process with exit code 2 if it is invalid."""
    return parser().parse_args(arguments)


def parser() -> Parser:
    """Returns the parser of all commands."""
    root = Parser(
        prog="edge-agent",
        description="Answers inference requests on this device, and through a gateway if the device cannot.",
        epilog=_EPILOG,
    )
    root.add_argument("--version", action="version", version=f"edge-agent {version('firstline')}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    _add_init(commands)
    _add_agent_commands(commands)
    _add_fleet_commands(commands)
    _add_hardware_commands(commands)
    return root


def load_settings(arguments: argparse.Namespace, **overrides: object) -> EdgeSettings:
    """Returns the settings that a command line names.

    Args:
        arguments: as `parse` returned them.
        overrides: sections of values that win over the command line.

    Raises:
        ConfigError: they cannot be read, or are invalid.
    """
    from firstline_edge.settings.load import load

    return load(arguments.config, overrides={**dict(arguments.overrides), **overrides})


def _add_init(commands: Commands) -> None:
    purpose = "write a first configuration with the five settings that matter"
    init = add_command(commands, "init", purpose, example="edge-agent init --config edge-agent.toml")
    init.set_defaults(command=init.prog)
    init.add_argument(
        "--config",
        type=Path,
        default=Path("edge-agent.toml"),
        metavar="FILE",
        help="file to write; default: edge-agent.toml",
    )


def _add_agent_commands(commands: Commands) -> None:
    run = _command(commands, "run", "answer requests until SIGTERM or SIGINT", example="run --config edge-agent.toml")
    run.add_argument("--port", type=int, help="TCP port instead of api.port; 0 lets the system choose")
    run.add_argument("--socket", type=Path, metavar="PATH", help="Unix socket to listen on too, instead of api.socket")

    status = _command(
        commands, "status", "print the status of the running agent", example="status --config edge-agent.toml"
    )
    status.add_argument("--url", help="the agent's address, if not the one that the configuration leads to")

    explain = _command(
        commands,
        "explain",
        "explain how one request was decided",
        example="explain 01a2019f-6dd1-704a-a261-d1635d589c27",
    )
    explain.add_argument("request_id", metavar="REQUEST_ID", help="request id from an answer's parameters")

    _command(
        commands,
        "doctor",
        "find errors on this device and what could be better, and print what to type",
        example="doctor --config edge-agent.toml",
    )

    audits = _command(
        add_group(commands, "audit", "list the audited answers"),
        "list",
        "print audited and escalated answers for `firstline certify --scores`",
        example="audit list --model digits --since 2026-11-21T19:30:00Z",
        forms=("csv", "json"),
    )
    audits.add_argument("--model", help="a bundle's name; required if there are several")
    audits.add_argument(
        "--since", type=_parse_time, metavar="TIME", help="leaves out what is older, such as 2026-11-21T19:30:00Z"
    )

    purge = _command(
        commands,
        "purge",
        "erase what a stopped agent stored: requests, answers, results, scores and the decision log",
        example="purge --what cache --yes",
    )
    purge.add_argument("--yes", action="store_true", help="erase; without this, only print what would be erased")
    purge.add_argument(
        "--what",
        action="append",
        choices=("outbox", "cache", "samples", "decisions"),
        help="only this; may be repeated",
    )


def _add_fleet_commands(commands: Commands) -> None:
    join = _command(
        commands,
        "join",
        "register this device with a gateway, once, with a join token",
        example="join https://gateway:8080 --token-file press-7.token",
    )
    join.add_argument("url", metavar="URL", help="the gateway, https://HOST:PORT")
    join.add_argument("--token-file", required=True, metavar="FILE", help="holds the join token; - reads it from stdin")
    join.add_argument("--proxy", default="", metavar="URL", help="HTTP proxy on the way to the gateway")
    join.add_argument("--force", action="store_true", help="join again, although this device has an identity")

    updates = add_group(commands, "update", "list and roll back the fleet's updates of models and configuration")
    _command(
        updates, "list", "print the state of the fleet's updates of models and configuration", example="update list"
    )

    rollback = _command(
        updates,
        "rollback",
        "roll a model or the configuration back to the previous version",
        example="update rollback digits",
    )
    what = rollback.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "model", type=_parse_name, metavar="MODEL", nargs="?", help="the model's name, see `edge-agent update list`"
    )
    what.add_argument("--configuration", action="store_true", help="the configuration, instead of a model")


def _add_hardware_commands(commands: Commands) -> None:
    hardware = add_group(commands, "hardware", "print the hardware of this device")
    read = _command(
        hardware, "get", "print the hardware of this device and its sensor readings", example="hardware get --measure"
    )
    read.add_argument("--measure", action="store_true", help="try every provider, as the agent does at its first start")
    planning = _command(
        add_group(commands, "plan", "plan how models run best on this device"),
        "explain",
        "explain how a model runs best on this device",
        example="plan explain digits --bandwidth 8 --round-trip 20",
    )
    planning.add_argument("model", metavar="MODEL", nargs="?", help="only this model; default: all models")
    planning.add_argument(
        "--profile", type=Path, metavar="FILE", help="profile; default: this machine's in the bundle's profiles/"
    )
    planning.add_argument(
        "--splits",
        type=Path,
        metavar="FILE",
        help="output of `firstline profile split -o json`; default: the bundle's split.json",
    )
    planning.add_argument("--bandwidth", type=_parse_positive, metavar="MBIT_S", help="bandwidth to the gateway")
    planning.add_argument("--round-trip", type=_parse_positive, metavar="MS", help="round-trip time to the gateway")

    profile = _command(
        add_group(commands, "profile", "measure models on this device"),
        "create",
        "measure what each model of a bundle costs on this device",
        example="profile create digits --quick",
    )
    profile.add_argument("model", metavar="MODEL|BUNDLE", help="a name below models.directories, or a bundle's folder")
    profile.add_argument(
        "--threads",
        type=_parse_counts,
        default=(),
        metavar="N,...",
        help="of a run; default: 1, all cores, and models.threads",
    )
    sizes = partial(_parse_counts, least=1)
    profile.add_argument("--batches", type=sizes, default=(), metavar="N,...", help="rows of a query; default: 1,4,16")
    profile.add_argument("--variant", action="append", default=[], help="measure only this model; may be repeated")
    profile.add_argument("--quick", action="store_true", help="take a fifth of the time")
    profile.add_argument("--alone", action="store_true", help="do not wait for other programs, because none runs here")
    profile.add_argument(
        "--sustained",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="also measure single samples after this long at full load; implies --alone",
    )
    profile.add_argument("--remeasure", action="store_true", help="measure known points again")


def _parse_name(text: str) -> str:
    if not text:  # of a variable that a script forgot to set; without a name the configuration would be meant
        raise argparse.ArgumentTypeError("the name is empty; see `edge-agent update list`")
    return text


def _parse_time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as 2026-11-21T19:30:00Z") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _parse_positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return number


def _parse_counts(text: str, least: int = 0) -> tuple[int, ...]:
    try:
        counts = tuple(int(one) for one in text.split(","))
    except ValueError:
        counts = ()
    if not counts or any(not least <= one <= _MAX_COUNT for one in counts):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers from {least} to {_MAX_COUNT}, such as 1,2")
    return counts


def _parse_override(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or ("." not in key.strip(".") and key != "links"):
        raise argparse.ArgumentTypeError(f"'{text}' is not SECTION.KEY=VALUE, such as api.port=9000")
    return key.strip(), value


def _command(
    commands: Commands, name: str, purpose: str, *, example: str, forms: tuple[str, ...] = ("text", "json")
) -> Parser:
    """Adds a command that reads settings, which all do except for `init`."""
    command = add_command(commands, name, purpose, example=f"edge-agent {example}", epilog=_EPILOG, forms=forms)
    command.set_defaults(command=command.prog)
    command.add_argument("--config", type=Path, metavar="FILE", help="settings (TOML); without it the defaults")
    command.add_argument(
        "--set",
        dest="overrides",
        type=_parse_override,
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="one setting, which wins over file and environment; may be repeated",
    )
    return command
