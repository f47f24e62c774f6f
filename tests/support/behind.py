"""Gateways behind a gateway, as processes."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from support.databases import sqlite_store
from support.gateway import DIGITS
from support.keys import create_key
from support.processes import TierProcess


@dataclass(frozen=True)
class GatewaysBehind:
    """A folder for gateways, and the key that all of them accept."""

    folder: Path
    token: str

    def gateway(self, name: str, bundle: Path = DIGITS) -> TierProcess:
        """A gateway that is not yet started, with a copy of the store that has the key."""
        folder = self.folder / name
        folder.mkdir()
        shutil.copy(self.folder / "keys" / "gateway.db", folder)
        config = folder / "gateway.toml"
        config.write_text(
            f'[models]\ndirectory = "{bundle}"\n[execution]\nsessions = 1\n[log]\nlevel = "warning"\nformat = "json"\n'
        )
        return TierProcess("firstline_gateway", "--config", config, log=folder / "log")


def gateways_behind(folder: Path) -> GatewaysBehind:
    return GatewaysBehind(folder, create_key(sqlite_store(folder / "keys"), "near", "application"))
