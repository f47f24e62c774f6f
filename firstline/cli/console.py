"""`firstline console`: the fleet in a browser, as a service of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from firstline.cli.command import command, command_group
from firstline.cli.options import GatewayOptions
from firstline.cli.output import Output, OutputOption
from firstline.console import DEFAULT_PORT
from firstline_core.errors import missing_package
from firstline_core.storage.secrets import read_secret

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.console import accounts as accounts_module
    from firstline.console.settings import Settings, check_password

app = command_group()

_PASSWORD = "FIRSTLINE_CONSOLE_PASSWORD"  # noqa: S105 (the name of a variable)


@command(app, "console", example="firstline console --gateway https://gateway:8080 --key-file ops.key")
def console(
    *,
    gateway: GatewayOptions,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535)] = DEFAULT_PORT,
    password_file: Annotated[str, typer.Option(metavar="FILE")] = "",
    accounts: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    hash_password: bool = False,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    plain_http: bool = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Serve the web console of a fleet until a signal stops it.

    Args:
        host: Address to listen on; addresses beyond loopback require sign-in.
        port: 0 for a free one.
        password_file: File with the password for browsers; default: FIRSTLINE_CONSOLE_PASSWORD.
        accounts: File with persons, roles and OpenID Connect (TOML).
        hash_password: Read a password from stdin, print its hash for the file, and exit.
        tls_cert: The console's certificate, with its chain (PEM).
        tls_key: The certificate's key (PEM).
        plain_http: Serve other machines without TLS, e.g. behind a proxy.
    """
    if hash_password:
        password = sys.stdin.buffer.readline().decode(errors="surrogateescape").rstrip("\r\n")
        check_password(password)
        typer.echo(accounts_module.hash_password(password))
        return
    shared = read_secret(password_file, "--password-file", "the password") or os.environ.get(_PASSWORD, "")
    settings = Settings(
        gateway=gateway.required_url(),
        key=gateway.required_key(),
        ca_file=gateway.found_ca,
        host=host,
        port=port,
        accounts=accounts_module.read_accounts(accounts, shared),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        plain_http=plain_http,
    )
    try:
        from firstline.console.service import run as serve
    except ModuleNotFoundError as error:
        raise missing_package(error, "firstline console", "console") from error
    serve(settings, lambda url: _print_url(url, output))


def _print_url(url: str, output: Output) -> None:
    if output is Output.JSON:
        typer.echo(msgspec.json.encode({"event": "ready", "url": url}))
    else:
        typer.echo(f"The console is at {url}")
