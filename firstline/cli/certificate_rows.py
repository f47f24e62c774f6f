"""Collects the rows of a certificate: from the models on this machine, or from a device and optionally a gateway."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from firstline.cli.output import progress
from firstline.client.sync_client import Client
from firstline.workbench.dataset import Dataset
from firstline.workbench.device_evidence import gather_from_agent
from firstline.workbench.evidence import Evidence, gather
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.storage.secrets import read_secret

FromAgentOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Device that answers the data, so that scores are those of its processor; it must hold the same bundle.",
    ),
]
TokenFileOption = Annotated[str, typer.Option(metavar="FILE", help="File with the device's token, if it requires one.")]
FullFromOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="With --from-agent: gateway that runs the full model; default: this machine."),
]
FullTokenFileOption = Annotated[str, typer.Option(metavar="FILE", help="File with the gateway's token.")]

# The longest that a tier may stay silent: a slow device runs a model meanwhile.
_TIMEOUT_S = 70.0


@dataclass(frozen=True, slots=True)
class Server:
    """A tier and its token, named by two options; without a URL the tier is this machine."""

    url: str | None
    token_file: str

    def opened(self, stack: ExitStack, url_option: str, token_option: str) -> Client | None:
        """Returns a client that closes with the stack; None without a URL.

        Raises:
            ConfigError: the URL is not valid, the token's file cannot be read, or there is a token without a URL.
        """
        if self.url is None:
            if self.token_file:
                raise ConfigError(f"{token_option} goes with {url_option}: it names the file of that server's token.")
            return None
        token = read_secret(self.token_file, token_option) or None
        return stack.enter_context(Client(self.url, token=token, timeout_s=_TIMEOUT_S))


def gathered(bundle: Bundle, dataset: Dataset, edge: str, device: Server, far: Server) -> Evidence:
    """Collects the rows, with a progress bar.

    Raises:
        ConfigError: options that do not go together; and what `gather` and `gather_from_agent` raise.
    """
    with ExitStack() as stack:
        agent = device.opened(stack, "--from-agent", "--token-file")
        gateway = far.opened(stack, "--full-from", "--full-token-file")
        if gateway is not None and agent is None:
            raise ConfigError("--full-from goes with --from-agent: without a device both models run here.")
        bar = stack.enter_context(progress("Certifying"))
        if agent is None:
            return gather(bundle, dataset, edge=edge, progress=bar)
        return gather_from_agent(bundle, dataset, agent, edge=edge, gateway=gateway, progress=bar)
