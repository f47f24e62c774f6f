"""From one TOML file, `FIRSTLINE_EDGE_SECTION__KEY` variables and flags to the agent's settings.

What the file leaves open is filled in here: where relative paths start, and what a device knows that has joined.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.storage import settings as sources
from firstline_core.storage.seals import CREDENTIAL
from firstline_edge.settings.check import check
from firstline_edge.settings.identity import readable_identity
from firstline_edge.settings.settings import EdgeSettings, LinkSection, expanded

PREFIX = "FIRSTLINE_EDGE_"


def load(
    file: Path | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    text: str | None = None,
) -> EdgeSettings:
    """Reads and checks the settings; relative paths in the file start at the file's folder.

    Args:
        file: None for defaults only.
        environ: None for this process's environment.
        overrides: from flags, by dotted key.
        text: what the file holds, where it is known already.

    Raises:
        ConfigError: a source cannot be read, or says something that makes no sense.
    """
    found = sources.load(
        EdgeSettings,
        file=file,
        environ=os.environ if environ is None else environ,
        prefix=PREFIX,
        overrides=overrides,
        text=text,
    )
    if file is not None:
        found = _anchor(found, file.resolve().parent)
    check(found)
    return _joined(found)


def _joined(settings: EdgeSettings) -> EdgeSettings:
    """With the name and, where there are none, the links of a device that has joined a gateway."""
    identity = readable_identity(settings.state_dir) if settings.agent.use_identity else None
    if identity is None:
        return settings
    said = settings.agent.device_id
    if said and said != identity.device:
        raise ConfigError(
            f"agent.device_id is '{said}', but this device joined {identity.gateway} as '{identity.device}'; leave "
            "agent.device_id out, or join under that name."
        )
    links = settings.links
    if not links:
        links = (LinkSection(kind="http", url=identity.gateway, proxy=identity.proxy),)
        if (broker := identity.broker) is not None:
            links += (LinkSection(kind="mqtt", host=broker.host, port=broker.port, topic_prefix=broker.prefix),)
    replace = msgspec.structs.replace
    return replace(settings, agent=replace(settings.agent, device_id=identity.device), links=links)


def _anchor(settings: EdgeSettings, folder: Path) -> EdgeSettings:
    def anchored(path: str) -> str:
        return str(folder / expanded(path)) if path else path

    replace = msgspec.structs.replace
    key_file = settings.encryption.key_file
    key_file = key_file if key_file.startswith(CREDENTIAL) else anchored(key_file)
    return replace(
        settings,
        agent=replace(settings.agent, state_dir=anchored(settings.agent.state_dir)),
        api=replace(settings.api, token_file=anchored(settings.api.token_file), socket=anchored(settings.api.socket)),
        encryption=replace(settings.encryption, key_file=key_file),
        fleet=replace(settings.fleet, root_file=anchored(settings.fleet.root_file)),
        models=replace(settings.models, directories=tuple(map(anchored, settings.models.directories))),
        links=tuple(
            replace(
                link,
                token_file=anchored(link.token_file),
                password_file=anchored(link.password_file),
                tls_ca_file=link.tls_ca_file if link.tls_ca_file == "system" else anchored(link.tls_ca_file),
                tls_certificate_file=anchored(link.tls_certificate_file),
                tls_key_file=anchored(link.tls_key_file),
            )
            for link in settings.links
        ),
    )
