"""`firstline rollout`: rolls out a bundle or a configuration to the fleet in stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.interrupt import pause
from firstline.cli.options import GatewayOptions, VersionArgument
from firstline.cli.output import date, say, size, table, warn
from firstline_core.errors import CapacityError, ConfigError, FirstlineError, LinkError
from firstline_core.storage.files import naming
from firstline_core.storage.settings import parse
from firstline_core.telemetry.wording import counted, rounded

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table

    from firstline.fleet import wording
    from firstline.fleet.rollouts import Rollouts
    from firstline_core.fleet.rollout_documents import Look, Plan, RolloutDevice, RolloutSummary
    from firstline_core.storage.files import read_text

EXIT_ENDED_OTHERWISE = 1
EXIT_NEEDS_DECISION = 3
_POLL_S = 2.0
_FAILED_SHOWN = 20
_LIVE = ("running", "rolling_back")
_FILE_BYTES = 256 * 1024
_DURATIONS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

app = command_group("Roll out models and configurations in stages, each of which is judged.")

BundleArgument = Annotated[str, typer.Argument(metavar="BUNDLE", help="Name of the bundle or the configuration.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id that `rollout create` printed.")]


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """The options that describe a rollout.

    Attributes:
        stages: Shares of the fleet (percent), e.g. 1,10,100; each includes the one before.
        soak: How long each stage is observed, e.g. 90m, 8h, 2d.
        per_minute: Devices that are updated in a minute; default: all at once.
        selector: Only devices with these tags, e.g. site=berlin,!test.
        held_back: Percentage held back until all stages are judged.
        promote_unseen: Promote at the end even without enough observations, for small fleets.
        ignore: Do not judge this figure; repeatable. Without disagreement, no audits are needed.
        configuration: Roll out a configuration (see `firstline config`) instead of a bundle.
        file: File with parts of the definition (docs/concepts/rollouts.md); it overrides the options.
    """

    stages: Annotated[str, typer.Option(metavar="LIST")] = "1,10,100"
    soak: Annotated[str, typer.Option(metavar="TIME")] = "1h"
    per_minute: Annotated[float | None, typer.Option(min=0.001)] = None
    selector: str = ""
    held_back: Annotated[float, typer.Option(min=0, max=90)] = 5.0
    promote_unseen: bool = False
    ignore: Annotated[list[str] | None, typer.Option(metavar="FIGURE")] = None
    configuration: bool = False
    file: Annotated[Path | None, typer.Option(metavar="TOML")] = None

    def definition(
        self, bundle: str, version: int, gateway: GatewayOptions, **more: object
    ) -> tuple[dict[str, Any], int | None]:
        """Returns the complete definition, with the registry's data, and the most bytes that a device downloads.

        Args:
            bundle: name of the bundle or the configuration.
            version: of it.
            gateway: whose registry has it.
            **more: fields of the definition that the file may override.

        Raises:
            ConfigError: the options or the file are not valid.
            FirstlineError: the registry refuses.
        """
        fields = {"bundle": bundle, "version": version} | self._stages() | more | self._file_content()
        if "manifest_sha256" in fields:
            return fields, None
        with gateway.registry("" if fields.get("what") == "configuration" else bundle) as registry:
            if fields.get("what") == "configuration":
                signed = registry.configuration(bundle, version)
                return fields | {"manifest_sha256": signed.sha256}, signed.size_bytes
            entry = registry.bundle(bundle, version)
        return fields | {"manifest_sha256": entry.manifest_sha256}, entry.size_bytes

    def _stages(self) -> dict[str, Any]:
        try:
            shares = [float(part) / 100 for part in self.stages.split(",")]
        except ValueError:
            raise ConfigError(
                f"--stages takes percentages with commas between, such as 1,10,100; not {self.stages!a}."
            ) from None
        if not all(0 < share <= 1 for share in shares) or any(after <= before for before, after in pairwise(shares)):
            raise ConfigError(
                f"--stages is {self.stages!a}; write percentages that rise up to 100, such as 1,10,100: each stage has "
                "the devices of those before."
            )
        each = {"soak_s": _seconds(self.soak)}
        if self.per_minute is not None:
            each["per_minute"] = self.per_minute
        return {
            "stages": [{"share": share} | each for share in shares],
            "selector": self.selector,
            "held_back": self.held_back / 100,
        }

    def _file_content(self) -> dict[str, Any]:
        """Returns the definition in the file, with the options that change its fields."""
        content = _toml(self.file) if self.file is not None else {}
        rules = content.get("rules", {})
        chosen = {"promote_unseen": self.promote_unseen, "ignored": self.ignore}
        if isinstance(rules, dict):  # the gateway reports any other type
            content["rules"] = {name: value for name, value in chosen.items() if value} | rules
        return content | ({"what": "configuration"} if self.configuration else {})


def _toml(file: Path) -> dict[str, Any]:
    with naming(file):
        return parse(read_text(file, _FILE_BYTES), file)


def _seconds(text: str) -> float:
    try:
        duration_s = float(text[:-1]) * _DURATIONS_S[text[-1:]]
    except (ValueError, KeyError):
        duration_s = -1.0
    if not 0 <= duration_s < math.inf:
        raise ConfigError(f"--soak {text!a} is not a duration with its unit; write 90s, 30m, 8h or 2d.")
    return duration_s


@command(app, "plan", example="firstline rollout plan digits 3 --stages 1,10,100 --soak 8h")
def plan(bundle: BundleArgument, version: VersionArgument, options: RolloutOptions, gateway: GatewayOptions) -> Report:
    """Show what a rollout would do, without starting it."""
    definition, size_bytes = options.definition(bundle, version, gateway)
    with gateway.fleet() as fleet:
        plan = fleet.rollouts.plan(definition, size_bytes)
    return Report(plan, _plan_text(plan))


@command(app, "create", example="firstline rollout create digits 3 --stages 1,10,100 --soak 8h")
def create(
    bundle: BundleArgument,
    version: VersionArgument,
    options: RolloutOptions,
    gateway: GatewayOptions,
    approval: Annotated[
        bool, typer.Option("--approval/--no-approval", help="A second person must approve it before it starts.")
    ] = False,
) -> Report:
    """Create a rollout, start it and print its id. A running rollout of the same bundle ends."""
    definition, _ = options.definition(bundle, version, gateway, approval=approval)
    with gateway.fleet() as fleet:
        rollout = fleet.rollouts.create(definition)
        if rollout.state != "draft":
            rollout = _started(fleet.rollouts, rollout.id)
    say(rollout.sentence, err=True)
    _print_warnings(rollout)
    return Report(rollout, rollout.id)


@command(app, "list", example="firstline rollout list --bundle digits")
def list_rollouts(
    gateway: GatewayOptions, bundle: Annotated[str, typer.Option(help="Only rollouts of this bundle.")] = ""
) -> Report:
    """List rollouts, the newest first."""
    with gateway.fleet() as fleet:
        rollouts = list(fleet.rollouts.all(bundle))
    rows = (
        (
            rollout.id,
            _subject(rollout),
            str(rollout.version),
            rollout.state,
            f"{min(rollout.stage + 1, rollout.stages)} of {rollout.stages}",
            date(rollout.created_s),
            rollout.created_by,
        )
        for rollout in rollouts
    )
    return Report(rollouts, table("id", "brings", ">version", "state", "stage", "made", "by", rows=rows))


@command(app, "get", example="firstline rollout get 01a206a7-da17-7214-88d4-6df427d34c0a")
def get(rollout: IdArgument, gateway: GatewayOptions) -> Report:
    """Show a rollout's state and evaluations."""
    with gateway.fleet() as fleet:
        return _report(fleet.rollouts, fleet.rollouts.get(rollout))


@command(app, "watch", example="firstline rollout watch 01a206a7-da17-7214-88d4-6df427d34c0a")
def watch(rollout: IdArgument, gateway: GatewayOptions) -> Report:
    """Wait until a rollout ends; exits 0 if it is complete, 3 if it needs a decision, 1 otherwise."""
    with gateway.fleet() as fleet:
        summary = _watched(fleet.rollouts, fleet.rollouts.get(rollout))
        otherwise = EXIT_NEEDS_DECISION if summary.state == "paused" else EXIT_ENDED_OTHERWISE
        return _report(fleet.rollouts, summary, 0 if summary.state == "completed" else otherwise)


def _report(rollouts: Rollouts, summary: RolloutSummary, exit_code: int = 0) -> Report:
    looks = rollouts.looks(summary.id)
    failed = rollouts.failed(summary, _FAILED_SHOWN + 1)  # one more tells whether there are more
    value = {"rollout": summary, "looks": looks, "failed": failed[:_FAILED_SHOWN]}
    return Report(value, _rollout_text(summary, looks, failed), exit_code)


def _rollout_text(
    rollout: RolloutSummary, looks: Sequence[Look], failed: Sequence[RolloutDevice]
) -> Iterator[str | Table]:
    yield f"{_subject(rollout)} {rollout.version}: {rollout.state}\n{rollout.sentence}\n{_counts(rollout)}"
    for command_name, sentence in rollout.consequences.items():
        yield f"{command_name}: {sentence}"
    if looks:
        rows = (
            (str(look.stage + 1), str(look.look), date(look.at_s), look.decision, look.rule, look.sentence)
            for look in looks
        )
        yield table(">stage", ">look", "when", "verdict", "rule", "why", rows=rows)
    if failed:
        yield table("failed", "why", rows=((one.device, one.reason or one.state) for one in failed[:_FAILED_SHOWN]))
    if len(failed) > _FAILED_SHOWN:
        yield f"These are the first {_FAILED_SHOWN}."


def _watched(rollouts: Rollouts, rollout: RolloutSummary) -> RolloutSummary:
    """Prints the progress until the rollout ends, and continues if the gateway is unreachable for a while."""
    progress = printed = ""
    while rollout.state in _LIVE:
        progress = progress or f"{rollout.state}: {rollout.sentence} {_counts(rollout)}"
        if progress != printed:
            say(progress, err=True)
            printed = progress
        pause(_POLL_S)
        try:
            rollout, progress = rollouts.get(rollout.id), ""
        except (LinkError, CapacityError) as error:
            progress = f"{error.message} Retrying."
    return rollout


def _add(name: str, explanation: str) -> None:
    """Adds a command for one rollout."""

    def run(rollout: IdArgument, gateway: GatewayOptions) -> Report:
        return _apply(name, rollout, gateway)

    command(app, name, example=f"firstline rollout {name} 01a206a7-da17-7214-88d4-6df427d34c0a", help=explanation)(run)


_add("start", "Start a rollout that was created and not started.")
_add("approve", "Approve a rollout that another person created.")
_add("pause", "Pause a rollout: update no further devices; updates in progress continue.")
_add("resume", "Resume a paused rollout.")
_add("promote", "Promote the stage without waiting for its evaluation.")
_add("retry", "Retry the devices that failed or stopped reporting.")
_add("abort", "Stop the updates in progress; updated devices keep the new version.")
_add("rollback", "Stop the updates in progress, and return updated devices to the previous version.")


def _started(rollouts: Rollouts, rollout: str) -> RolloutSummary:
    """Starts a rollout that was just created; an error names its id."""
    try:
        return rollouts.command(rollout, "start")
    except FirstlineError:
        say(f"The rollout was created but not started: `firstline rollout start {rollout}` starts it.", err=True)
        raise


def _apply(name: str, rollout: str, gateway: GatewayOptions) -> Report:
    """Applies a command to a rollout."""
    with gateway.fleet() as fleet:
        before = fleet.rollouts.get(rollout)
        if name in before.consequences:
            say(before.consequences[name], err=True)
        after = fleet.rollouts.command(rollout, name, before.revision)
    _print_warnings(after)
    return Report(after, f"{after.state}: {after.sentence}")


def _print_warnings(rollout: RolloutSummary) -> None:
    for warning in rollout.warnings:
        warn(warning)


def _subject(rollout: RolloutSummary) -> str:
    return wording.subject(rollout.definition.get("what", "model"), rollout.bundle)


def _counts(rollout: RolloutSummary) -> str:
    states = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in rollout.devices.items())
    return f"({states or 'no device yet'}; {rollout.control} in the control group)"


def _plan_text(plan: Plan) -> Iterator[str | Table]:
    stages = (
        (
            *map(str, (stage.stage + 1, stage.devices, stage.away, stage.control)),
            _size(stage.bytes),
            wording.duration(stage.offered_s),
            "-" if stage.earliest_s is None else wording.duration(stage.earliest_s),
        )
        for stage in plan.stages
    )
    columns = (">stage", ">devices", ">away", ">control group", ">bytes", "offered within", "observed until")
    yield table(*columns, rows=stages)
    figures = (
        (
            str(stage.stage + 1),
            one.figure,
            rounded(one.tolerance),
            *("-" if number is None else rounded(number) for number in (one.must_detect, one.detectable)),
            "-" if one.after_s is None else wording.duration(one.after_s),
        )
        for stage in plan.stages
        for one in stage.figures
    )
    yield table(">stage", "figure", ">accepted", ">to find", ">can see", ">sees that after", rows=figures)
    sent = "-" if plan.bytes is None else f"at most {size(plan.bytes)}"
    complete = (
        "" if plan.earliest_s is None else f"; complete after {wording.duration(plan.earliest_s)} at the earliest"
    )
    yield f"{counted(plan.devices, 'device')}, {plan.rest} of them held back; {sent}{complete}"
    yield "\n".join(filter(None, (plan.detects, plan.audits, plan.false_aborts)))
    yield from (f"its start ends rollout {rollout}" for rollout in plan.supersedes)
    yield from (f"Warning: {warning}" for warning in (*plan.warnings, plan.unaudited) if warning)
    yield f"abort: {plan.abort}\nrollback: {plan.rollback}"


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else size(size_bytes)
