"""Serves a bundle on loopback until a signal, and announces its addresses."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path

import msgspec
import typer

from firstline.cli.command import EXIT_FAILED
from firstline.cli.output import Output
from firstline.cli.signals import until_signalled
from firstline.demo.tiers import ServedBundle, serve_bundle
from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle


def serve(bundle: Bundle, port: int, output: Output) -> None:
    """Serves a bundle until a signal.

    Raises:
        ConfigError: a tier did not start.
        typer.Exit: a tier stopped on its own.
    """
    ended = asyncio.run(until_signalled(_serve(bundle, port, output)))
    if not isinstance(ended, signal.Signals):
        typer.echo(ended, err=True)
        raise typer.Exit(EXIT_FAILED)


async def _serve(bundle: Bundle, port: int, output: Output) -> str:
    with tempfile.TemporaryDirectory(prefix="firstline-run-") as scratch:
        async with serve_bundle(bundle, Path(scratch), port) as served:
            _announce(bundle, served, output)
            return await served.ended(lambda sentence: typer.echo(sentence, err=True))


def _announce(bundle: Bundle, served: ServedBundle, output: Output) -> None:
    command = curl(bundle.manifest, served.url)
    tiers = {"agent": served.agent, "gateway": served.gateway}
    urls = {name: running.url for name, running in tiers.items() if running is not None}
    if output is Output.JSON:
        event = {"event": "ready", "model": bundle.manifest.name, "url": served.url, **urls, "curl": command}
        typer.echo(msgspec.json.encode(event))
        return
    for name, url in urls.items():
        typer.echo(f"{name:<8} {url}")
    typer.echo("State is temporary: answers that are still to be corrected are lost at the end.")
    typer.echo(f"Send a request, or end the tiers with Ctrl-C:\n  {command}")


def curl(manifest: Manifest, url: str) -> str:
    """Returns a command that sends a request to a tier."""
    target = f"{url}/firstline/v1/models/{manifest.name}/infer"
    if len(manifest.inputs) == 1 and manifest.inputs[0].datatype == "BYTES":
        return f"curl --data-binary @FILE {target}"
    return f"curl --data-binary @ROW.json {target}"
