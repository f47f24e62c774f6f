"""Names for versions, such as champion and canary: their current versions, their history, and reverts."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.registry import AliasChange
from firstline_gateway import audit_log
from firstline_gateway.registry import records
from firstline_gateway.registry.catalogue import Catalogue, CatalogueReader
from firstline_gateway.store.store import Store

HISTORY_LIMIT = 100


class Aliases:
    """The aliases of the registry. Used on one event loop.

    Args:
        store: reads and writes it.
        catalogue: reads the current targets.
        clock: gives wall time.
    """

    def __init__(self, store: Store, catalogue: CatalogueReader, *, clock: Clock) -> None:
        self._store = store
        self._catalogue = catalogue
        self._clock = clock

    async def all(self, model: str = "") -> list[AliasChange]:
        """Returns the current aliases, of one model or of all."""
        return await self._store.read(lambda connection: records.aliases(connection, model))

    async def history(self, model: str, alias: str) -> list[AliasChange]:
        """Returns the history of an alias, newest first.

        Raises:
            NotFoundError: there never was such an alias.
        """
        changes = await self._store.read(
            lambda connection: records.alias_history(connection, model, alias, HISTORY_LIMIT)
        )
        if not changes:
            raise _unknown(model, alias)
        return changes

    async def set(self, model: str, alias: str, version: int | None, by: str) -> AliasChange:
        """Points an alias at a version; None deletes the alias.

        Raises:
            NotFoundError: the version is not listed, or there is no alias to delete.
            ConflictError: new targets were published meanwhile.
        """

        def wanted(connection: Connection, catalogue: Catalogue) -> int | None:
            if version is None and not any(one.alias == alias for one in records.aliases(connection, model)):
                raise _unknown(model, alias)
            if version is not None and (model, version) not in catalogue.bundles:
                raise NotFoundError(
                    f"The registry has no {model} version {version}; push it first: firstline model push BUNDLE."
                )
            return version

        return await self._change(model, alias, by, "alias.remove" if version is None else "alias.set", wanted)

    async def revert(self, model: str, alias: str, by: str) -> AliasChange:
        """Reverts an alias to its version before the last change.

        Raises:
            NotFoundError: there is no such alias.
            ConflictError: it never had another version, the registry lists that version no longer, or new targets were
                published meanwhile.
        """

        def previous(connection: Connection, catalogue: Catalogue) -> int | None:
            history = records.alias_history(connection, model, alias, 2)
            if not history:
                raise _unknown(model, alias)
            if len(history) < 2:
                raise ConflictError(f"The alias {alias} of {model} was set once; there is nothing to go back to.")
            version = history[1].version
            if version is not None and (model, version) not in catalogue.bundles:
                raise ConflictError(f"{alias} stood for {model} version {version}, which is no longer in the registry.")
            return version

        return await self._change(model, alias, by, "alias.revert", previous)

    async def _change(
        self, model: str, alias: str, by: str, action: str, choose: Callable[[Connection, Catalogue], int | None]
    ) -> AliasChange:
        """Changes an alias to the version that `choose` returns, if the targets stay the same until it is written."""
        catalogue = await self._catalogue.current()
        now_s = self._clock.wall_s()

        def write(connection: Connection) -> AliasChange:
            records.lock(connection)
            targets = records.heads(connection).get("targets")
            if targets is not None and targets.version != catalogue.version:
                raise ConflictError("Somebody has published since; look at what is listed now, then repeat.")
            change = AliasChange(model, alias, choose(connection, catalogue), by, now_s)
            records.change_alias(connection, change)
            audit_log.add(connection, now_s, by, action, f"{model}/{alias}", version=change.version)
            return change

        return await self._store.change(write)


def _unknown(model: str, alias: str) -> NotFoundError:
    return NotFoundError(f"{model} has no alias {alias}; `firstline alias list` lists the aliases.")
