"""Checks of `doctor` on the device: hardware, state directory, clock, identity, fleet, and files with secrets."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import stat
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from firstline_core.clock import EARLIEST_PLAUSIBLE_WALL_S
from firstline_core.errors import ConfigError, DeadlineExceededError, FirstlineError
from firstline_core.hardware.catalogue import Catalogue, ThermalZone
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.readings import Absent, Snapshot, describe, known, measured
from firstline_core.hardware.sensors import read_twice
from firstline_core.hardware.survey import thermal_zones
from firstline_core.storage.files import DAMAGED, system_reason
from firstline_core.storage.seals import CREDENTIAL, read_keys
from firstline_core.storage.secrets import read_secret
from firstline_edge.api.access import parse_tokens
from firstline_edge.budgets.from_settings import budgets_of, device_sensors, tariff_of
from firstline_edge.cli.agent_api import agent_status
from firstline_edge.cli.findings import Finding, hint, hint_if, ok, problem, warning
from firstline_edge.fleet.fleet_state import NO_GATEWAY
from firstline_edge.fleet.updates.registry import HTTP_REQUIRED
from firstline_edge.hardware.sampler import missing_kernel_files
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.identity.credentials import DeviceIdentity
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

_FSYNC_RUNS = 9
_FSYNC_SLOW_MS = 20.0
_DISK_SPARE_BYTES = 64 << 20
_WRITE_ADVICE = {
    errno.ENOSPC: "free space there (df -h {path}), or set agent.state_dir to another disk",
    errno.EDQUOT: "free space there (quota), or set agent.state_dir to another disk",
    errno.EROFS: "sudo mount -o remount,rw the file system of {path}, or set agent.state_dir to another one",
}
_NO_SENSOR = Absent("no sensor")
_BELOW_C = 4.0
"""Degrees below the kernel's limit that the device still warms up while it steps down."""


def identity_findings(identity: DeviceIdentity) -> Iterator[Finding]:
    """Checks the device's identity and its validity."""
    yield from (problem("identity", each) for each in identity.problems)
    described, credentials = identity.describe(), identity.credentials
    if described is None or credentials is None:
        return
    left_s = credentials.identity.not_after_s - credentials.floor.now_s()
    detail = (
        f"{described['device']} at {described['gateway']}, certificate until {described['not_after']}, authority "
        f"{credentials.identity.authority[:16]}"
    )
    if left_s < 0:
        advice = (
            "start the agent, which renews it; if the gateway refuses: edge-agent join URL --token-file FILE --force, "
            "and restart the agent"
        )
        yield warning("identity", f"{detail}: it has ended", advice)
    else:
        yield ok("identity", detail)


def state_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Checks whether corrections can be stored here, and how long that takes: each one waits for an fsync."""
    path = settings.state_dir
    try:
        # For a directory that does not exist yet, its first existing parent is checked.
        folder = next(parent for parent in (path, *path.parents) if parent.exists())
        free_bytes = shutil.disk_usage(folder).free
        fsync_ms = _fsync_ms(folder)
    except OSError as error:
        advice = _WRITE_ADVICE.get(error.errno or 0, "sudo install -d -m 700 -o $USER {path}").format(
            path=shlex.quote(str(path))
        )
        yield problem("state directory", f"{path} cannot be written: {system_reason(error)}", advice)
        return
    limits_bytes = settings.outbox.limit_bytes + settings.outbox.answers_limit_bytes + settings.cache.disk_limit_bytes
    needed_bytes = max(0, limits_bytes - _stored_bytes(path))
    enough = free_bytes >= needed_bytes + _DISK_SPARE_BYTES
    space = f"{free_bytes >> 20} MiB free on {folder}, outbox and cache may grow by {needed_bytes >> 20}"
    lower = "lower outbox.limit_bytes and cache.disk_limit_bytes, or free space"
    faster = "set agent.state_dir to a faster disk (SD cards are slow), or raise policy.deadline_reserve_ms"
    fsync = f"{fsync_ms:.2f} ms (median), which every promised correction waits for"
    yield ok("disk space", space) if enough else warning("disk space", space, lower)
    yield hint_if(fsync_ms > _FSYNC_SLOW_MS, "fsync", fsync, faster)
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield warning("state directory", f"others may read {path}", f"chmod 700 {shlex.quote(str(path))}")


def outbox_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Checks whether a damaged outbox was set aside, and whether the running agent can use its outbox."""
    path = StatePaths(settings.state_dir).outbox_path
    aside = path.with_name(path.name + DAMAGED)
    if os.path.exists(aside):  # noqa: PTH110 (`Path.exists` raises where this user may not look)
        detail = f"a damaged outbox was set aside as {aside}; corrections that it promised may be lost"
        yield warning("outbox", detail, "check the disk; delete that file once it is of no use")
    try:
        _, status = agent_status(settings)
    except FirstlineError:  # no agent runs, or it does not answer
        return
    advice = "check the disk, and start the agent again: it replaces an outbox that is damaged"
    problems = [each for each in status.get("problems", ()) if each["path"] == str(path)]
    yield from (warning("outbox", each["message"], advice) for each in problems)


def _stored_bytes(state_dir: Path) -> int:
    """Returns the current size of outbox and cache."""
    size_bytes = 0
    for folder in ("outbox", "cache"):
        for file in (state_dir / folder).rglob("*"):
            with contextlib.suppress(OSError):  # SQLite's own files come and go
                size_bytes += file.stat().st_size
    return size_bytes


def clock_finding(offset_s: float | None) -> Finding:
    """Checks whether the wall clock is plausible. Deadlines do not need it; logs, ages and certificates do.

    Args:
        offset_s: against a gateway's clock; None if no gateway was reached.
    """
    now = datetime.now(UTC)
    now_text = now.isoformat(timespec="seconds")
    if now.timestamp() < EARLIEST_PLAUSIBLE_WALL_S:
        return warning("clock", f"{now_text} was never set", "sudo timedatectl set-ntp true")
    if offset_s is not None and abs(offset_s) > 60:
        detail = f"{now_text} is {abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the gateway's"
        return warning("clock", detail, "sudo timedatectl set-ntp true")
    return ok("clock", now_text)


def secret_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Checks whether files with secrets are readable and private."""
    files: list[tuple[str, str, Callable[[str, str], object] | None]] = [
        ("api.token_file", settings.api.token_file, parse_tokens),
        ("encryption.key_file", settings.encryption.key_file, read_keys),
    ]
    for number, link in enumerate(settings.links):
        files += [
            (f"links[{number}].token_file", link.token_file, read_secret),
            (f"links[{number}].password_file", link.password_file, read_secret),
            (f"links[{number}].tls_key_file", link.tls_key_file, None),
        ]
    for setting, file, read in files:
        if not file or file.startswith(CREDENTIAL):  # the service's own, which this command does not get
            continue
        try:
            mode = stat.S_IMODE(Path(file).stat().st_mode)
            readable = os.access(file, os.R_OK)
        except OSError as error:
            yield problem(setting, f"{file}: {system_reason(error)}", f"write the secret into {file}")
            continue
        if not readable:
            yield problem(setting, f"{file} may not be read by this user", f"sudo chown $USER {shlex.quote(file)}")
        elif read is not None and (fault := _fault(read, file, setting)):
            yield problem(setting, fault)
        elif mode & stat.S_IRWXO:
            yield problem(setting, f"every user may read {file}", f"chmod 600 {shlex.quote(file)}")
        elif mode & stat.S_IRWXG:
            yield warning(setting, f"its group may read {file}", f"chmod 600 {shlex.quote(file)}")
        else:
            yield ok(setting, f"{file} is private")


def _fault(read: Callable[[str, str], object], file: str, setting: str) -> str:
    """Returns the error with which `run` would refuse the file; "" if there is none."""
    try:
        read(file, setting)
    except ConfigError as error:
        return error.message.removeprefix(f"{setting}: ")
    return ""


def _fsync_ms(folder: Path) -> float:
    spent_ms = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FSYNC_RUNS):
            file.write(b"\0" * 4096)
            file.flush()
            started_s = time.perf_counter()
            os.fsync(file.fileno())
            spent_ms.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(spent_ms)


def hardware_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Checks two sensor readings, because counters need two, and the stored catalogue."""
    tree = Tree(Path(settings.hardware.root))
    if absent := missing_kernel_files(tree):
        yield problem("hardware.root", absent)
    else:
        yield from _sensor_findings(settings, tree)
    yield from engine_findings(Surveyor(tree, settings.state_dir).read_stored(), settings.models.providers)


def _sensor_findings(settings: EdgeSettings, tree: Tree) -> Iterator[Finding]:
    limit_c = settings.costs.heat_limit_c
    try:
        now = read_twice(device_sensors(settings))
        zones = read_in_time(tree, partial(thermal_zones, tree))
    except DeadlineExceededError as error:
        advice = "until then no guard of heat, battery or memory acts; edge-agent doctor says when it is well again"
        yield warning("hardware", error.message, advice)
        return
    yield sensor_finding(now, limit_c)
    yield from limit_findings(zones, now, limit_c)
    absent = [name for name in settings.hardware.power_rails if name not in now.power_w]
    if absent:
        detail = f"there is no rail {absent[0]!a} here; there are: {', '.join(now.power_w) or 'none'}"
        yield problem("hardware.power_rails", detail, "name rails that `edge-agent hardware get` shows, or none")
    yield ok("power", f"{describe(now.device_power_w)}{' W' if known(now.device_power_w) is not None else ''}")


def sensor_finding(now: Snapshot, heat_limit_c: float) -> Finding:
    """Returns whether heat or the supply slows the device down; a missing sensor is not a fault.

    Args:
        now: one reading.
        heat_limit_c: that the device should stay below.
    """
    causes = [cause for cause, reading in now.throttling.items() if measured(reading) == 1]
    if causes:
        return warning(
            "hardware",
            f"it is held back now: {', '.join(causes)}",
            "see to its supply and cooling; edge-agent hardware get shows its sensors",
        )
    hottest_c = measured(now.hottest_c)
    if hottest_c is None:
        return ok("hardware", f"temperature {describe(now.hottest_c)}")
    if hottest_c >= heat_limit_c:
        advice = "see to its cooling, or raise costs.heat_limit_c"
        return warning("hardware", f"{hottest_c:.0f} C, and the limit is {heat_limit_c:g} C", advice)
    return ok("hardware", f"{hottest_c:.0f} C")


def limit_findings(zones: Sequence[ThermalZone], now: Snapshot, heat_limit_c: float) -> list[Finding]:
    """Returns whether the kernel throttles before the agent acts on heat.

    Args:
        zones: from the kernel; the limit of a zone that is warmer than its limit now is ignored.
        now: one reading.
        heat_limit_c: that the device should stay below.
    """
    early = [
        (zone.passive_c, zone.name)
        for zone in zones
        if zone.passive_c is not None
        and zone.passive_c <= heat_limit_c
        and (warmth_c := measured(now.temperature_c.get(zone.name, _NO_SENSOR))) is not None
        and warmth_c < zone.passive_c
    ]
    if not early:
        return []
    from_c, zone = min(early)
    detail = f"the kernel throttles from {from_c:g} C ({zone}), and the agent acts by {heat_limit_c:g} C"
    return [hint("heat limit", detail, f"set costs.heat_limit_c = {from_c - _BELOW_C:g}, or less")]


def engine_findings(catalogue: Catalogue | None, providers: tuple[str, ...]) -> list[Finding]:
    """Returns configured providers that failed their trial, and working ones that are not configured.

    Args:
        catalogue: the stored catalogue; None if there is none.
        providers: of the settings.
    """
    tried = [engine for name in providers if catalogue is not None and (engine := catalogue.engine("onnx", name))]
    idle = [
        ok(engine.name, "works here, and models.providers does not have it; edge-agent profile create tells more")
        for engine in (catalogue.engines if catalogue is not None else ())
        if engine.runtime == "onnx" and engine.works and engine.name not in providers
    ]
    return idle + [
        warning(
            engine.name,
            f"did not run a trial model: {engine.reason}",
            "repair its installation and try again (edge-agent hardware get --measure), or set models.providers",
        )
        for engine in tried
        if not engine.works
    ]


def budget_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Checks whether something is counted for each budget; one that nothing is charged to limits nothing."""
    tariff = tariff_of(settings)
    links = tariff.links.values()
    counted = {
        "bytes": True,
        "joules": tariff.joules_per_run
        or any(link.joules_per_byte_sent or link.joules_per_byte_received for link in links),
        "money": tariff.money_per_request or any(link.money_per_byte for link in links),
    }
    advice = {
        "joules": "set costs.joules_per_run, or joules_per_mib_sent and joules_per_mib_received of a link",
        "money": "set costs.money_per_request, or costs.money_per_mib and metered = true of a link",
    }
    for resource in sorted({name.partition("/")[0] for name in budgets_of(settings.budget)}):
        if not counted[resource]:
            yield warning("budget", f"no cost in {resource} is stated, so this budget limits nothing", advice[resource])


def fleet_findings(settings: EdgeSettings) -> Iterator[Finding]:
    """Checks whether models can come from the fleet; no findings on a device that is not a member of one."""
    if not settings.fleet.enabled:
        return
    if not settings.links:  # the agent does not start
        yield problem("fleet", *NO_GATEWAY.split("; ", 1))
    elif not any(link.kind == "http" for link in settings.links):
        yield warning("fleet", *HTTP_REQUIRED.split("; ", 1))
    root = settings.fleet.root_file
    if not root:
        advice = "set fleet.root_file to the root metadata that `firstline keys init` wrote (1.root.json)"
        yield warning("fleet.root_file", "not set, so that no model comes from the fleet", advice)
        return
    try:
        with Path(root).open("rb") as stream:
            stream.read(1)
    except OSError as error:
        yield problem("fleet.root_file", f"{root} cannot be read: {system_reason(error)}", "put root.json there")
    else:
        yield ok("fleet.root_file", f"{root} says whose signatures count")
