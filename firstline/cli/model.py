"""`firstline model`: pushes bundles to a gateway's registry and fetches them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli import alias, stored_profiles
from firstline.cli.fleet_options import (
    KEYS,
    CaOption,
    GatewayOption,
    KeyFileOption,
    KeysOption,
    PassphraseOption,
    keyring_of,
    registry_at,
)
from firstline.cli.output import Output, OutputOption, bytes_progress, print_json, print_table, size, table
from firstline.cli.paths import BundleArgument, require_bundle
from firstline.release.keyring import Keyring
from firstline.release.pulling import pull as pull_bundle
from firstline.release.pushing import push as push_bundle
from firstline.release.pushing import remove as remove_bundle
from firstline.release.registry import Registry
from firstline_core.bundle.store import open_bundle
from firstline_core.bundle.trust import Trust
from firstline_core.errors import ConfigError, NotFoundError
from firstline_core.fleet.registry import BundleEntry
from firstline_core.fleet.target import ExtraNeeds
from firstline_core.telemetry.wording import counted

_NEEDS = re.compile(r"(?P<variant>[A-Za-z0-9][A-Za-z0-9._-]*):(?P<what>arch|memory_mb)=(?P<value>[A-Za-z0-9_,-]+)")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Push bundles to a gateway's registry; list, fetch and name them.",
)
app.add_typer(alias.app, name="alias")
app.add_typer(stored_profiles.app, name="profile")

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The bundle's name.")]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="A number, or an alias, e.g. champion.")]


@app.command()
def push(
    bundle: BundleArgument,
    *,
    needs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VARIANT:WHAT=VALUE",
            help="Requirement of a variant: edge-int8:arch=aarch64,armv7l or edge-int8:memory_mb=256.",
        ),
    ] = None,
    without_full: Annotated[
        bool, typer.Option("--without-full", help="Leave out the full model; gateways get it from elsewhere.")
    ] = False,
    keys: KeysOption = KEYS,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Upload a bundle's missing files and sign for it. Repeat the command to resume an interrupted push."""
    opened = open_bundle(require_bundle(bundle))
    asked = _asked(needs or ())
    keyring = keyring_of(keys, passphrase_file)
    with registry_at(gateway, key_file, ca) as registry, bytes_progress("sending") as report:
        done = push_bundle(keyring, registry, opened, asked, time.time(), with_full=not without_full, report=report)
    if output is Output.JSON:
        print_json(done._asdict())
        return
    sent = f"{size(done.sent_bytes)} sent, {size(done.known_bytes)} were there"
    typer.echo(f"{done.name} version {done.version}: {'signed' if done.is_new else 'was signed before'}; {sent}.")


@app.command("ls")
def list_bundles(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Only this model.")] = "",
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the signed bundles, and the size of the registry's files."""
    with registry_at(gateway, key_file, ca) as registry:
        found = list(registry.bundles(model))
        kept = registry.status()
    if output is Output.JSON:
        print_json(found)
        return
    made = table("model", ">version", "aliases", "variants", ">size", "full model")
    for one in found:
        variants = ", ".join(variant.id for variant in one.variants)
        aliases = ", ".join(one.aliases) or "-"
        made.add_row(one.name, str(one.version), aliases, variants, size(one.size_bytes), one.full_digest[:12] or "-")
    print_table(made)
    room = f" of {size(kept.limit_bytes)}" if kept.limit_bytes else ""
    typer.echo(f"The registry keeps {counted(kept.blobs, 'file')}, {size(kept.blobs_bytes)}{room}.")


@app.command()
def inspect(
    model: ModelArgument,
    version: VersionArgument,
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a signed bundle: variants, their requirements, certificates."""
    with registry_at(gateway, key_file, ca) as registry:
        found = registry.bundle(model, _version(registry, model, version))
    if output is Output.JSON:
        print_json(found)
        return
    _print_entry(found)


@app.command()
def pull(
    model: ModelArgument,
    version: VersionArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create.")],
    *,
    keys: KeysOption = KEYS,
    root: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The first root metadata, if the keys' folder is elsewhere.")
    ] = None,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fetch a bundle as a device does: verified from the first root on. An interrupted fetch is resumed."""
    keyring = Keyring(keys)
    anchor = root or keyring.anchor
    seen = keyring.trust if root is None else folder.absolute().parent / ".firstline-trust"
    try:
        trusted = anchor.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{anchor} cannot be read: {error.strerror}; name the first root metadata with --root, which whoever keeps "
            "the keys has."
        ) from error
    with registry_at(gateway, key_file, ca) as registry, bytes_progress("fetching") as report:
        trust = Trust(seen, registry.metadata, anchor=trusted, now_s=time.time)
        found = pull_bundle(trust, registry, model, _version(registry, model, version), folder, report=report)
    if output is Output.JSON:
        print_json({"path": str(found.path), "fetched_bytes": found.fetched_bytes})
    else:
        typer.echo(f"{found.path}: {size(found.fetched_bytes)} fetched, and all of it is what was signed.")


@app.command("rm")
def remove(
    model: ModelArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A number.")],
    *,
    keys: KeysOption = KEYS,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Stop signing for a bundle: no device installs it from now on. Its files are deleted a day later."""
    keyring = keyring_of(keys, passphrase_file)
    with registry_at(gateway, key_file, ca) as registry:
        remove_bundle(keyring, registry, model, version, time.time())
    if output is Output.JSON:
        print_json({"removed": {"model": model, "version": version}})
    else:
        typer.echo(f"{model} version {version} is no longer signed for.")


def _asked(needs: Sequence[str]) -> dict[str, ExtraNeeds]:
    found: dict[str, ExtraNeeds] = {}
    for text in needs:
        match = _NEEDS.fullmatch(text)
        number = match["value"] if match is not None and match["what"] == "memory_mb" else "1"
        if match is None or not (number.isascii() and number.isdigit() and len(number) <= 9):
            raise ConfigError(
                f"--needs {text[:80]!a} says nothing; write VARIANT:arch=aarch64 or VARIANT:memory_mb=256."
            )
        before = found.get(match["variant"], ExtraNeeds())
        if match["what"] == "arch":
            found[match["variant"]] = before._replace(architectures=tuple(match["value"].split(",")))
        else:
            found[match["variant"]] = before._replace(memory_mb=int(number))
    return found


def _version(registry: Registry, model: str, said: str) -> int:
    """Returns the version of a number or an alias."""
    if said.isascii() and said.isdigit() and len(said) <= 18:
        return int(said)
    found = next((one.version for one in registry.aliases(model) if one.alias == said), None)
    if found is None:
        raise NotFoundError(f"{model} has no version and no alias {said[:80]!a}; `firstline model ls` shows them.")
    return found


def _print_entry(found: BundleEntry) -> None:
    aliases = f", {', '.join(found.aliases)}" if found.aliases else ""
    typer.echo(f"{found.name} version {found.version}{aliases}: {size(found.size_bytes)} in all.")
    made = table("variant", "precision", "runtime", "for", ">memory", ">bytes", "digest")
    for variant in found.variants:
        needs = variant.needs
        memory = f"{needs.memory_mb} MiB" if needs.memory_mb else "-"
        made.add_row(
            variant.id,
            variant.precision,
            needs.runtime,
            ", ".join(needs.architectures) or "any",
            memory,
            f"{needs.size_bytes:,}",
            variant.digest[:12],
        )
    print_table(made)
    for variant in found.variants:
        if variant.certificate is not None:
            typer.echo(f"{variant.id} is certified at {variant.certificate.threshold}: {variant.certificate.promise}.")
