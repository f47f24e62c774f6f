"""Reads what the settings name: the models folder, the runtime options, and the other files and services.

The command `check` needs these, but no part of a gateway, and not the routes of its API.
"""

from __future__ import annotations

from pathlib import Path

from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.storage.files import check_folder
from firstline_gateway import mqtt
from firstline_gateway.executors.factory import check_executors
from firstline_gateway.identity import identity
from firstline_gateway.identity.authorities import had_store
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store import database
from firstline_gateway.webhooks import webhooks


def models_folder(settings: Settings, *, must_be_whole: bool = True) -> ModelsFolder:
    """Returns the bundles that the settings name; see `ModelsFolder`."""
    directory = Path(settings.models.directory)
    return ModelsFolder(directory, settings.fetched_models, must_be_whole, settings.copies_of)


def runtime_options(settings: Settings) -> RuntimeOptions:
    """Returns the runtime options of this gateway: parallel sessions, each on one thread.

    Raises:
        ConfigError: this onnxruntime does not offer an execution provider.
    """
    options = RuntimeOptions(providers=settings.providers, threads=1, decoding=settings.decoding.limits)
    check_options(options, "execution.providers")
    return options


def check_files(settings: Settings) -> None:
    """Checks the files and services that the settings name, except the models.

    Raises:
        ConfigError: the token file, the store, the broker's password or certificate, a topic, or a file that the engine
            needs is invalid.
    """
    check_executors(settings)
    folders = {"identity.directory": settings.identity.directory, "broker.directory": settings.broker.directory}
    if not settings.registry.blobs.startswith("s3:"):
        folders["registry.blobs"] = settings.registry.blobs
    for setting, folder in folders.items():
        if folder:
            check_folder(Path(folder), setting)
    identity.check_files(settings)
    database.check(settings.store, must_exist=had_store(settings.identity))
    webhooks.check(settings.webhooks)
    if settings.mqtt.enabled and not settings.broker.directory:  # otherwise the gateway creates the files
        mqtt.check(settings.mqtt)
