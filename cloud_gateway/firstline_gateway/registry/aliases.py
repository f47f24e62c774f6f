"""Names for versions, such as champion and canary: their current versions, their history, and reverts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.registry import AliasChange
from firstline_gateway import audit_log
from firstline_gateway.registry import records
from firstline_gateway.registry.catalogue import Catalogue
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import StoreWriter

HISTORY_LIMIT = 100


class Aliases:
    """Asked on one event loop.

    Args:
        readers: of the store.
        writer: writes to it.
        catalogue: returns the current catalogue.
        clock: gives wall time.
    """

    def __init__(
        self, readers: Readers, writer: StoreWriter, catalogue: Callable[[], Awaitable[Catalogue]], *, clock: Clock
    ) -> None:
        self._readers = readers
        self._writer = writer
        self._catalogue = catalogue
        self._clock = clock

    async def all(self, model: str = "") -> list[AliasChange]:
        """Returns the current aliases, of one model or of all."""
        return await self._readers.ask(lambda connection: records.aliases(connection, model))

    async def history(self, model: str, alias: str) -> list[AliasChange]:
        """Returns the history of an alias, newest first.

        Raises:
            NotFoundError: there never was such an alias.
        """
        found = await self._readers.ask(
            lambda connection: records.alias_history(connection, model, alias, HISTORY_LIMIT)
        )
        if not found:
            raise _unknown(model, alias)
        return found

    async def set(self, model: str, alias: str, version: int | None, by: str) -> AliasChange:
        """Points an alias at a version; None deletes the alias.

        Raises:
            NotFoundError: the version is not listed, or there is no alias to remove.
            ConflictError: the targets were published meanwhile.
        """
        catalogue = await self._catalogue()
        if version is not None and (model, version) not in catalogue.bundles:
            raise NotFoundError(f"The registry has no {model} version {version}.")
        change = AliasChange(model, alias, version, by, self._clock.wall_s())

        def put(connection: Connection) -> AliasChange:
            if not _is_current(connection, catalogue):
                raise _published()
            if version is None and not any(one.alias == alias for one in records.aliases(connection, model)):
                raise _unknown(model, alias)
            return _changed(connection, change, "alias.set" if version is not None else "alias.remove")

        return await self._writer.write(put)

    async def revert(self, model: str, alias: str, by: str) -> AliasChange:
        """Reverts an alias to its version before the last change.

        Raises:
            NotFoundError: there is no such alias.
            ConflictError: it has stood for nothing else, or that is no longer listed, or the targets were published
                meanwhile.
        """
        catalogue = await self._catalogue()
        now_s = self._clock.wall_s()

        def put(connection: Connection) -> AliasChange:
            if not _is_current(connection, catalogue):
                raise _published()
            history = records.alias_history(connection, model, alias, 2)
            if not history:
                raise _unknown(model, alias)
            if len(history) < 2:
                raise ConflictError(f"The alias {alias} of {model} was set once; there is nothing to go back to.")
            version = history[1].version
            if version is not None and (model, version) not in catalogue.bundles:
                raise ConflictError(f"{alias} stood for {model} version {version}, which is no longer in the registry.")
            return _changed(connection, AliasChange(model, alias, version, by, now_s), "alias.revert")

        return await self._writer.write(put)


def _changed(connection: Connection, change: AliasChange, action: str) -> AliasChange:
    records.change_alias(connection, change)
    audit_log.add(
        connection,
        at_s=change.at_s,
        actor=change.by,
        action=action,
        subject=f"{change.model}/{change.alias}",
        details={"version": change.version},
    )
    return change


def _is_current(connection: Connection, catalogue: Catalogue) -> bool:
    """Whether the targets are those still, and stay so until this transaction ends: none goes that an alias names."""
    records.lock(connection)
    return records.heads(connection).get("targets", (0, 0.0))[0] == catalogue.version


def _published() -> ConflictError:
    return ConflictError("Somebody has published since; look at what is listed now, then repeat.")


def _unknown(model: str, alias: str) -> NotFoundError:
    return NotFoundError(f"{model} has no alias {alias}.")
