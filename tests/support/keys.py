"""API keys as the command makes them, in the store of a test's gateway."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from firstline_gateway.identity import keys
from firstline_gateway.identity.principals import SCOPES, Scope
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.tables import open_database

_SCOPES: dict[str, tuple[Scope, ...]] = {"device": ("infer",), "application": ("infer",), "operator": SCOPES}


def create_key(store: StoreSection, name: str, kind: str = "application", requests_per_s: float | None = None) -> str:
    """The text of a new key of a device, an application, or an operator, who may do everything."""
    return create_keys(store, (name,), kind, requests_per_s)[name]


def create_keys(
    store: StoreSection, names: Iterable[str], kind: str = "application", requests_per_s: float | None = None
) -> dict[str, str]:
    """The same for many, by name."""
    with _writing(store) as connection:
        return {
            name: keys.create_key(
                connection,
                name,
                _SCOPES[kind],
                now_s=time.time(),
                kind="device" if kind == "device" else "application",
                requests_per_s=requests_per_s,
            )
            for name in names
        }


def revoke_key(store: StoreSection, name: str) -> None:
    with _writing(store) as connection:
        keys.revoke_key(connection, name, time.time())


def bearer(text: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {text}"}


@contextmanager
def _writing(store: StoreSection) -> Iterator[Connection]:
    database = open_database(store)
    try:
        with database.begin() as connection:
            yield connection
    finally:
        database.close()
