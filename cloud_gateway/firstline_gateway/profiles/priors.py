"""Stored profiles of models on this gateway's hardware, for the executors.

Only what people brought counts: a device's word about a machine that is not its own would steer this gateway's work.
"""

from __future__ import annotations

from contextlib import closing

import msgspec

from firstline_core.errors import FirstlineError
from firstline_core.profile.profile import Profile, decode
from firstline_core.telemetry.logs import logger
from firstline_gateway.executors.dispatch.costs import Priors
from firstline_gateway.profiles import records
from firstline_gateway.settings.settings import Store
from firstline_gateway.store.database import connect

log = logger(__name__)


def priors_in(store: Store) -> Priors:
    """Asks a store of this version's schema whenever a model is put to work; it holds no connection meanwhile."""

    def found(bundle: str, model_digest: str, fingerprint: str) -> list[Profile]:
        try:
            with closing(connect(store)) as database, database.reading() as connection:
                content = records.of_hardware(connection, bundle, model_digest, fingerprint)
            return [decode(content, f"The stored profile of {bundle}")] if content is not None else []
        except (FirstlineError, msgspec.MsgspecError) as error:  # the model runs without one
            log.warning("stored profile not used", bundle=bundle, error=str(error))
            return []

    return found
