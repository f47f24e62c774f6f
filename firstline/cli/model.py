"""`firstline model`: pushes bundles to a gateway's registry, fetches them, and names their versions by aliases."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import (
    BundleArgument,
    GatewayOptions,
    KeysFolder,
    ModelArgument,
    SigningKeys,
    VersionArgument,
    require_bundle,
)
from firstline.cli.output import bytes_progress, size, table, warn
from firstline_core.errors import ConfigError, NotFoundError
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table

    from firstline.fleet.registry import Registry
    from firstline.release.publishing import push_bundle, remove_bundle
    from firstline.release.pulling import pull_bundle
    from firstline_core.bundle.manifest import Manifest, valid_certificate
    from firstline_core.bundle.store import open_bundle
    from firstline_core.bundle.trust import Trust
    from firstline_core.fleet.registry import BundleEntry
    from firstline_core.fleet.target import ExtraNeeds

_NEEDS = re.compile(
    r"(?P<variant>[A-Za-z0-9][A-Za-z0-9._-]*):(arch=(?P<arch>[A-Za-z0-9_,-]+)|memory_mb=(?P<memory_mb>[0-9]{1,9}))"
)

app = command_group("Push bundles to a gateway's registry; list, fetch and name them.")

WhichArgument = Annotated[str, typer.Argument(metavar="VERSION", help="A number, or an alias, e.g. champion.")]


@command(app, "push", example="firstline model push bundles/digits-2")
def push(
    bundle: BundleArgument,
    keys: SigningKeys,
    gateway: GatewayOptions,
    needs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VARIANT:WHAT=VALUE",
            help="Requirement of a variant: edge-int8:arch=aarch64,armv7l or edge-int8:memory_mb=256.",
        ),
    ] = None,
) -> Report:
    """Upload a bundle's missing files and sign for it. Repeat the command to resume an interrupted push."""
    opened = open_bundle(require_bundle(bundle))
    extra_needs = _extra_needs(needs or ())
    keyring = keys.keyring()
    with gateway.registry() as registry, bytes_progress("sending") as report:
        pushed = push_bundle(keyring, registry, opened, extra_needs, time.time(), report=report)
    for warning in _unseen(opened.manifest):
        warn(warning)
    state = "signed" if pushed.is_new else "was signed before"
    sent = f"{size(pushed.sent_bytes)} sent, {size(pushed.known_bytes)} were there"
    return Report(pushed._asdict(), f"{pushed.name} version {pushed.version}: {state}; {sent}.")


def _unseen(manifest: Manifest) -> Iterator[str]:
    """Yields what nothing in a rollout of the bundle can see."""
    what = f"{manifest.name} version {manifest.version}"
    if not manifest.full_digest:
        yield (
            f"{what} has no full model, so its edge answers cannot be audited: its rollout waits for a person, because "
            "nothing can see whether they are right."
        )
    elif not any(
        certificate is not None and certificate.audit_bounds
        for certificate in (valid_certificate(manifest, variant) for variant in manifest.edge)
    ):
        yield (
            f"{what} has no certificate that audits can test, so no alarm can stop its rollout, which can only compare "
            "its devices with others: certify it first (firstline certify)."
        )


@command(app, "list", example="firstline model list")
def list_bundles(
    gateway: GatewayOptions, model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Only this model.")] = ""
) -> Report:
    """List the signed bundles, and the size of the registry's files."""
    with gateway.registry() as registry:
        bundles = list(registry.bundles(model))
        usage = registry.status()
    rows = (
        (
            bundle.name,
            str(bundle.version),
            ", ".join(bundle.aliases) or "-",
            ", ".join(variant.id for variant in bundle.variants),
            size(bundle.size_bytes),
            bundle.full_digest[:12] or "-",
        )
        for bundle in bundles
    )
    limit = f" of {size(usage.limit_bytes)}" if usage.limit_bytes else ""
    return Report(
        bundles,
        (
            table("model", ">version", "aliases", "variants", ">size", "full model", rows=rows),
            f"The registry keeps {counted(usage.blobs, 'file')}, {size(usage.blobs_bytes)}{limit}.",
        ),
    )


@command(app, "get", example="firstline model get digits champion")
def get(model: ModelArgument, version: WhichArgument, gateway: GatewayOptions) -> Report:
    """Show a signed bundle: variants, their requirements, certificates."""
    with gateway.registry(model) as registry:
        entry = registry.bundle(model, _version(registry, model, version))
    return Report(entry, _entry_text(entry))


@command(app, "pull", example="firstline model pull digits champion pulled")
def pull(
    model: ModelArgument,
    version: WhichArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    keys: KeysFolder,
    gateway: GatewayOptions,
    *,
    root: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
) -> Report:
    """Fetch a bundle and verify it from the first root on, as a device does. Repeat the command to resume.

    Args:
        folder: The folder to create.
        root: The first root metadata, if the keys' folder is elsewhere.
    """
    keyring = keys.keyring()
    anchor = root or keyring.anchor
    trust_folder = keyring.trust if root is None else folder.absolute().parent / ".firstline-trust"
    try:
        anchor_content = anchor.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{anchor} cannot be read: {system_reason(error)}; name the first root metadata with "
            "--root, which lies with the signing keys."
        ) from error
    with gateway.registry(model) as registry, bytes_progress("fetching") as report:
        trust = Trust(trust_folder, registry.metadata, anchor=anchor_content, now_s=time.time)
        pulled = pull_bundle(trust, registry, model, _version(registry, model, version), folder, report=report)
    return Report(
        {"path": str(pulled.path), "fetched_bytes": pulled.fetched_bytes},
        f"{pulled.path}: {size(pulled.fetched_bytes)} fetched, and all of it is what was signed.",
    )


@command(app, "delete", example="firstline model delete digits 1")
def delete(model: ModelArgument, version: VersionArgument, keys: SigningKeys, gateway: GatewayOptions) -> Report:
    """Withdraw the signature of a bundle: no further device installs it. Its files are deleted a day later."""
    keyring = keys.keyring()
    with gateway.registry(model) as registry:
        remove_bundle(keyring, registry, model, version, time.time())
    return Report({"removed": {"model": model, "version": version}}, f"{model} version {version} is no longer signed.")


def _extra_needs(needs: Sequence[str]) -> dict[str, ExtraNeeds]:
    extra: dict[str, ExtraNeeds] = {}
    for text in needs:
        if (match := _NEEDS.fullmatch(text)) is None:
            raise ConfigError(
                f"--needs {text[:80]!a} is not valid; write VARIANT:arch=aarch64 or VARIANT:memory_mb=256."
            )
        before = extra.get(match["variant"], ExtraNeeds())
        if match["arch"]:
            extra[match["variant"]] = before._replace(architectures=tuple(match["arch"].split(",")))
        else:
            extra[match["variant"]] = before._replace(memory_mb=int(match["memory_mb"]))
    return extra


def _version(registry: Registry, model: str, text: str) -> int:
    """Returns the version of a number or an alias."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    version = next((entry.version for entry in registry.aliases(model) if entry.alias == text), None)
    if version is None:
        raise NotFoundError(f"{model} has no version and no alias {text[:80]!a}; `firstline model list` shows them.")
    return version


def _entry_text(entry: BundleEntry) -> Iterator[str | Table]:
    aliases = f", {', '.join(entry.aliases)}" if entry.aliases else ""
    yield f"{entry.name} version {entry.version}{aliases}: {size(entry.size_bytes)} in all."
    rows = (
        (
            variant.id,
            variant.precision,
            variant.needs.runtime,
            ", ".join(variant.needs.architectures) or "any",
            f"{variant.needs.memory_mb} MiB" if variant.needs.memory_mb else "-",
            f"{variant.needs.size_bytes:,}",
            variant.digest[:12],
        )
        for variant in entry.variants
    )
    yield table("variant", "precision", "runtime", "for", ">memory", ">bytes", "digest", rows=rows)
    for variant in entry.variants:
        if variant.certificate is not None:
            yield f"{variant.id} is certified at {variant.certificate.threshold}: {variant.certificate.promise}."
