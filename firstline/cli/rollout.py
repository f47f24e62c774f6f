"""`firstline rollout`: rolls out a bundle or a configuration to the fleet in stages."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from firstline.cli.dates import date
from firstline.cli.fleet_options import CaOption, GatewayOption, KeyFileOption, fleet_at
from firstline.cli.output import Output, OutputOption, print_json, print_table, size, table
from firstline.cli.rollout_options import (
    DURATIONS_S,
    BundleArgument,
    ConfigurationOption,
    FileOption,
    HeldOption,
    PaceOption,
    SelectorOption,
    SoakOption,
    StagesOption,
    UnseenOption,
    VersionArgument,
    Where,
    definition,
    read_file,
    said,
)
from firstline.fleet.rollouts import Rollouts
from firstline_core.errors import CapacityError, FirstlineError, LinkError
from firstline_core.fleet.rollout import Plan, RolloutSummary
from firstline_core.telemetry.wording import counted

EXIT_ENDED_OTHERWISE = 1
EXIT_ASKS = 3
_LOOK_S = 2.0
_LIVE = ("running", "rolling_back")

app = typer.Typer(help="Roll out models and configurations in stages, each of which is judged.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id that `rollout start` printed.")]


@app.command()
def plan(
    bundle: BundleArgument,
    version: VersionArgument,
    *,
    stages: StagesOption = "1,10,100",
    soak: SoakOption = "1h",
    per_minute: PaceOption = None,
    selector: SelectorOption = "",
    held_back: HeldOption = 5.0,
    promote_unseen: UnseenOption = False,
    configuration: ConfigurationOption = False,
    file: FileOption = None,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what a rollout would do, without starting it."""
    options = said(stages, soak, per_minute, selector, held_back) | read_file(
        file, unseen=promote_unseen, configuration=configuration
    )
    wanted, size_bytes = definition(options, bundle, version, Where(gateway, key_file, ca))
    with fleet_at(gateway, key_file, ca) as fleet:
        found = fleet.rollouts.plan(wanted, size_bytes)
    if output is Output.JSON:
        print_json(found)
    else:
        _print_plan(found)


@app.command()
def start(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE|ID", help="The bundle; or the id of a waiting rollout, without a version.")
    ],
    version: Annotated[int | None, typer.Argument(min=1, help="Which version, that was pushed.")] = None,
    *,
    stages: StagesOption = "1,10,100",
    soak: SoakOption = "1h",
    per_minute: PaceOption = None,
    selector: SelectorOption = "",
    held_back: HeldOption = 5.0,
    promote_unseen: UnseenOption = False,
    configuration: ConfigurationOption = False,
    approval: Annotated[bool, typer.Option(help="A second person must approve it before it starts.")] = False,
    file: FileOption = None,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a rollout and print its id. A running rollout of the same bundle ends."""
    if version is None:
        _command("start", bundle, Where(gateway, key_file, ca), output)
        return
    options = said(stages, soak, per_minute, selector, held_back) | {"approval": approval}
    options |= read_file(file, unseen=promote_unseen, configuration=configuration)
    wanted, _ = definition(options, bundle, version, Where(gateway, key_file, ca))
    with fleet_at(gateway, key_file, ca) as fleet:
        made = fleet.rollouts.create(wanted)
        if made.state != "draft":
            made = _started(fleet.rollouts, made.id)
    typer.echo(made.sentence, err=True)
    _mind(made)
    if output is Output.JSON:
        print_json(made)
    else:
        typer.echo(made.id)


@app.command("ls")
def list_rollouts(
    *,
    bundle: Annotated[str, typer.Option(help="Only rollouts of this bundle.")] = "",
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List rollouts, the newest first."""
    with fleet_at(gateway, key_file, ca) as fleet:
        found = list(fleet.rollouts.all(bundle))
    if output is Output.JSON:
        print_json(found)
        return
    made = table("id", "brings", ">version", "state", "stage", "made", "by")
    for one in found:
        stage = f"{min(one.stage + 1, one.stages)} of {one.stages}"
        made.add_row(one.id, _brought(one), str(one.version), one.state, stage, date(one.created_s), one.created_by)
    print_table(made)


@app.command()
def get(
    rollout: IdArgument,
    *,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Wait until it ends; exits 0 if complete, 1 otherwise, 3 if it needs a decision."),
    ] = False,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a rollout's state and evaluations."""
    with fleet_at(gateway, key_file, ca) as fleet:
        found = fleet.rollouts.get(rollout)
        if watch:
            found = _watched(fleet.rollouts, found)
        looks = fleet.rollouts.looks(rollout)
    if output is Output.JSON:
        print_json({"rollout": found, "looks": looks})
    else:
        typer.echo(f"{_brought(found)} {found.version}: {found.state}\n{found.sentence}\n{_counts(found)}")
        for command, sentence in found.consequences.items():
            typer.echo(f"{command}: {sentence}")
        made = table(">stage", ">look", "when", "verdict", "rule", "why")
        for look in looks:
            when = date(look.at_s)
            made.add_row(str(look.stage + 1), str(look.look), when, look.decision, look.rule, look.sentence)
        if looks:
            print_table(made)
    if watch and found.state != "completed":
        raise typer.Exit(EXIT_ASKS if found.state == "paused" else EXIT_ENDED_OTHERWISE)


def _watched(rollouts: Rollouts, found: RolloutSummary) -> RolloutSummary:
    """Prints the progress until the rollout ends, and continues if the gateway is unreachable for a while."""
    now = printed = ""
    while found.state in _LIVE:
        now = now or f"{found.state}: {found.sentence} {_counts(found)}"
        if now != printed:
            typer.echo(now, err=True)
            printed = now
        time.sleep(_LOOK_S)
        try:
            found, now = rollouts.get(found.id), ""
        except (LinkError, CapacityError) as error:
            now = f"{error.message} It is asked again."
    return found


def _add(command: str, explanation: str) -> None:
    """Adds a command for one rollout."""

    def run(
        rollout: IdArgument,
        *,
        gateway: GatewayOption = "",
        key_file: KeyFileOption = "",
        ca: CaOption = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        _command(command, rollout, Where(gateway, key_file, ca), output)

    app.command(command, help=explanation)(run)


_add("approve", "Approve a rollout that somebody else made.")
_add("pause", "Begin nothing more; devices under way go on.")
_add("resume", "Go on.")
_add("promote", "Take the stage for sound at your word.")
_add("retry", "Have devices that failed or fell silent try again.")
_add("abort", "Stop devices under way; those that are done stay.")
_add("rollback", "Stop devices under way; those that are done run again what they ran before.")


def _started(rollouts: Rollouts, rollout: str) -> RolloutSummary:
    """Starts a rollout that was just created; an error names its id."""
    try:
        return rollouts.command(rollout, "start")
    except FirstlineError:
        typer.echo(f"Made, and not started: `firstline rollout start {rollout}` starts it.", err=True)
        raise


def _command(command: str, rollout: str, where: Where, output: Output) -> None:
    with fleet_at(*where) as fleet:
        before = fleet.rollouts.get(rollout)
        if command in before.consequences:
            typer.echo(before.consequences[command], err=True)
        found = fleet.rollouts.command(rollout, command, before.revision)
    _mind(found)
    if output is Output.JSON:
        print_json(found)
    else:
        typer.echo(f"{found.state}: {found.sentence}")


def _mind(found: RolloutSummary) -> None:
    for warning in found.warnings:
        typer.echo(f"mind: {warning}", err=True)


def _brought(found: RolloutSummary) -> str:
    what = found.definition.get("what", "model")
    return found.bundle if what == "model" else f"{what} {found.bundle}"


def _counts(found: RolloutSummary) -> str:
    states = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in found.devices.items())
    return f"({states or 'no device yet'}; {found.control} left alone)"


def _print_plan(found: Plan) -> None:
    made = table(">stage", ">devices", ">away", ">left alone", ">bytes", "told within", "observed until")
    for stage in found.stages:
        fetched = "-" if stage.bytes is None else size(stage.bytes)
        numbers = (stage.stage + 1, stage.devices, stage.away, stage.control)
        made.add_row(*map(str, numbers), fetched, _long(stage.offered_s), _long(stage.earliest_s))
    print_table(made)
    seen = table(">stage", "figure", ">accepted", ">to find", ">can see", ">sees that after")
    for stage in found.stages:
        for one in stage.figures:
            numbers_of = (one.find, one.seen)
            row = ["-" if number is None else f"{number:.3g}" for number in numbers_of]
            after = "-" if one.after_s is None else _long(one.after_s)
            seen.add_row(str(stage.stage + 1), one.figure, f"{one.tolerance:.3g}", *row, after)
    print_table(seen)
    sent = "-" if found.bytes is None else f"at most {size(found.bytes)}"
    meant, complete = counted(found.devices, "device"), _long(found.earliest_s)
    typer.echo(f"{meant}, {found.rest} of them held back; {sent}; complete after {complete}")
    for rollout in found.supersedes:
        typer.echo(f"its start ends rollout {rollout}")
    for warning in found.warnings:
        typer.echo(f"mind: {warning}")
    typer.echo(f"abort: {found.abort}\nrollback: {found.rollback}")


def _long(seconds: float) -> str:
    return next((f"{seconds / per:.3g} {unit}" for unit, per in reversed(DURATIONS_S.items()) if seconds >= per), "0 s")
