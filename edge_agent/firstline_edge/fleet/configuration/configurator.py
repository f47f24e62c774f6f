"""Updates of this device's configuration: fetched, verified, applied to the running agent, and kept or rolled back.

The states are those of a model's update. A configuration is accepted if it is signed, the device's own settings allow
it, the agent starts with it, and the agent answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from firstline_core.errors import ConfigError, FirstlineError, IntegrityError, NotFoundError
from firstline_core.fleet.configuration import LIMIT_BYTES, configuration_path
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.artefact import SignedFile
from firstline_edge.cascade.cascade import LiveSettings
from firstline_edge.fleet.configuration.installed_configuration import (
    ConfigurationFile,
    SignedConfiguration,
    settings_with,
    usable_settings,
)
from firstline_edge.fleet.updates.installation import SignedFileSource
from firstline_edge.fleet.updates.installed import UpdateRecord
from firstline_edge.fleet.updates.state_machine import UpdateServices, UpdateStateMachine
from firstline_edge.fleet.updates.trial import RowCounts
from firstline_edge.models.models import Models
from firstline_edge.settings.settings import EdgeSettings

_S = UpdateState


@dataclass(eq=False, kw_only=True)
class SettingsAdoption:
    """Applies other settings to a running agent, and counts its failures since then.

    Args:
        models: of the agent.
        live: adopts the settings.
        answered: counts the rows of models.
    """

    models: Models
    live: LiveSettings
    answered: Callable[..., RowCounts]
    _before: RowCounts = field(default=RowCounts(), init=False)

    def adopt(self, settings: EdgeSettings) -> None:
        """Exchanges the settings, and begins to count failures."""
        self._before = self.answered(*self.models.all)
        self.live.adopt(settings)

    def failed(self) -> bool:
        """Returns whether more than half of the rows since the latest call of `adopt` got no answer."""
        return self.answered(*self.models.all).has_failed_since(self._before)


class Configurator(UpdateStateMachine[SignedConfiguration, DesiredConfiguration]):
    """All updates of one device's configuration.

    Args:
        file: the configurations of the device.
        own: the device's settings, which limit a configuration.
        registry: of the signed files.
        adoption: applies settings to the agent.
        services: of the device.
    """

    def __init__(
        self,
        file: ConfigurationFile,
        own: EdgeSettings,
        registry: SignedFileSource,
        adoption: SettingsAdoption,
        services: UpdateServices,
    ) -> None:
        super().__init__("The configuration", file, services)
        self._own = own
        self._registry = registry
        self._adoption = adoption

    def adopt_own(self, own: EdgeSettings) -> None:
        """Uses other settings of the device itself, with the configuration that runs on top of them.

        Raises:
            ConfigError: they do not allow this configuration; nothing has changed.
        """
        try:
            settings = settings_with(own, self._file.state.running)
        except ConfigError as error:
            raise ConfigError(f"The fleet's configuration does not fit the new settings. {error.message}") from error
        self._own = own
        self._adoption.adopt(settings)
        self._services.changed()

    async def _runs(self, desired: DesiredConfiguration) -> bool:
        running = self._file.state.running
        return running is not None and (running.name, running.version, running.sha256) == (
            desired.name,
            desired.version,
            desired.sha256,
        )

    async def _installed_sha256(self) -> str:
        running = self._file.state.running
        return "" if running is None else running.sha256

    async def _install(self, record: UpdateRecord[DesiredConfiguration], desired: DesiredConfiguration) -> None:
        """Fetches and stores it, verified, and allowed by this device's own settings."""
        if record.state is _S.OFFERED:
            jitter_s = self._services.rng.uniform(0, self._limits.download_jitter_s)
            await self._requests.while_desired(self._clock.sleep(jitter_s), desired)
        file = await self._requests.while_desired(find_file(self._registry, desired), desired)
        if record.state is _S.OFFERED:
            record = record.after(_S.DOWNLOADING, self._now_s())
            await self._write(record)
        staged = await self._requests.while_desired(fetch(self._registry, file, desired), desired)
        settings_with(self._own, staged)
        now_s = self._now_s()
        record = record.after(_S.VERIFIED, now_s).after(_S.STAGED, now_s)
        await self._store(replace(self._file.state, record=record, staged=staged))

    async def _begin_trial(self) -> None:
        state = self._file.state
        settings = settings_with(self._own, state.staged)
        state = replace(state, previous=state.running)  # the previous one may be tried again: nothing is overwritten
        await self._store(state.begin_trial(self._limits.trial_tries, self._now_s()))
        self._adoption.adopt(settings)

    def _trial_failed(self) -> bool:
        return self._adoption.failed()

    async def _run_previous(self) -> None:
        """Applies the previous configuration; the device's own settings if it is not allowed any more."""
        rolled_back = self._file.state
        self._adoption.adopt(await self._services.off_loop(usable_settings, self._file, self._own, self._clock))
        if self._file.state != rolled_back:
            self._report()

    def _outcome(self, error: FirstlineError | OSError) -> tuple[UpdateState, str, str]:
        """See `UpdateStateMachine`; a configuration that does not become valid is rejected for any reason."""
        _, reason, message = super()._outcome(error)
        return _S.REJECTED, reason, message

    def _ends_on_disk_error(self, record: UpdateRecord[DesiredConfiguration]) -> bool:
        return False  # a configuration is small: the update waits until the disk accepts it


async def find_file(registry: SignedFileSource, desired: DesiredConfiguration) -> SignedFile:
    """Returns the signed file of the desired configuration.

    Raises:
        NotFoundError: it is not listed.
        IntegrityError: it is signed with another digest.
        FirstlineError: see `SignedFileSource.files`.
    """
    name, version = desired.name, desired.version
    file = (await registry.files()).get(configuration_path(name, version))
    if file is None:
        raise NotFoundError(
            f"The gateway has no version {version} of the configuration {name}; `firstline config list` lists them."
        )
    if file.sha256 != desired.sha256 or file.size_bytes > LIMIT_BYTES:
        raise IntegrityError(
            f"Configuration {name} version {version} is signed as {file.sha256[:12]} of {file.size_bytes} bytes, and "
            f"{desired.sha256[:12]} is desired; start the rollout again."
        )
    return file


async def fetch(registry: SignedFileSource, file: SignedFile, desired: DesiredConfiguration) -> SignedConfiguration:
    """Downloads a configuration.

    Raises:
        IntegrityError: the bytes differ from the signed ones.
        ConfigError: it is not text.
        FirstlineError: it is not available now.
    """
    content = b""
    async for part in registry.read(file.sha256, 0, file.size_bytes):
        content += part
        if len(content) > file.size_bytes:
            break
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise IntegrityError(f"{file.path} came with other bytes than were signed; is this the registry?")
    try:
        return SignedConfiguration(desired.name, desired.version, content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"Configuration {desired.name} version {desired.version} is no text.") from error
