"""The tables of all packages: names every module that declares some, and opens a store with them."""

from __future__ import annotations

from sqlalchemy import MetaData

from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store import database
from firstline_gateway.store.database import Database
from firstline_gateway.store.schema import METADATA


def tables() -> MetaData:
    """Returns the tables that the packages declare; imports them, which a store that has its tables never needs."""
    import firstline_gateway.audit_log
    import firstline_gateway.contracts.records
    import firstline_gateway.fleet.alarms
    import firstline_gateway.fleet.answers
    import firstline_gateway.fleet.devices
    import firstline_gateway.fleet.tiers
    import firstline_gateway.fleet.totals
    import firstline_gateway.identity.tables
    import firstline_gateway.jobs.records
    import firstline_gateway.profiles.records
    import firstline_gateway.registry.records
    import firstline_gateway.rollouts.records
    import firstline_gateway.serving.deliveries.records
    import firstline_gateway.store.service_clock
    import firstline_gateway.webhooks.records  # noqa: F401

    return METADATA


def open_database(found: StoreSection, *, must_exist: bool = False) -> Database:
    """Connects to a store, and creates the tables of all packages or migrates them; see `database.open_database`."""
    return database.open_database(found, tables, must_exist=must_exist)
