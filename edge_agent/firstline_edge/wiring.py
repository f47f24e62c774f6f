"""Single parts, each from its section of the settings. In which order they are put together says `parts.py`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, ConfigError
from firstline_core.routing import policies
from firstline_core.routing.policies import Policy
from firstline_core.storage.seals import Seal, make_seal, read_keys
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.cache.disk import DiskCache
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.cascade import CascadeOptions
from firstline_edge.cascade.hedging import HedgeOptions
from firstline_edge.outbox.completions import Completions
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.settings.settings import EdgeSettings, LogSection, PolicySection
from firstline_edge.state import StateDirectory
from firstline_edge.telemetry.recorder import Recorder

if TYPE_CHECKING:
    from firstline_edge.models.loading import LadderLoader


def seal_of(settings: EdgeSettings) -> Seal:
    """What closes the records that hold payloads.

    Raises:
        CapacityError: there is to be a key, and none can be had: then nothing may be kept.
    """
    try:
        return make_seal(read_keys(settings.encryption.key_file, "encryption.key_file"))
    except ConfigError as error:
        raise CapacityError(f"{error.message} Without its key nothing is kept on the disk.") from error


def make_cache(settings: EdgeSettings, state: StateDirectory, clock: Clock) -> ResultCache:
    """In memory, and on disk where the settings give it room there."""
    section, disk, refusal = settings.cache, None, ""
    if section.disk_limit_bytes:
        try:
            seal, limit_bytes = seal_of(settings), section.disk_limit_bytes
            disk = DiskCache(state.cache_path, limit_bytes=limit_bytes, ttl_s=section.ttl_s, seal=seal, clock=clock)
        except CapacityError as error:
            refusal = error.message
    memory_bytes = section.memory_limit_bytes
    return ResultCache(limit_bytes=memory_bytes, ttl_s=section.ttl_s, disk=disk, clock=clock, refusal=refusal)


def make_recorder(section: LogSection, state: StateDirectory, metrics: RequestMetrics, clock: Clock) -> Recorder:
    return Recorder(
        metrics=metrics,
        decisions_path=state.decisions_path,
        decisions_limit_bytes=section.decisions_limit_bytes,
        log_requests=section.requests,
        clock=clock,
    )


def open_outbox(settings: EdgeSettings, state: StateDirectory, endings: Completions, clock: Clock) -> Outbox:
    """The durable part of it.

    Raises:
        CapacityError: the disk refuses, or there is no key.
        ConfigError: a newer version wrote it.
    """
    seal = seal_of(settings)
    announcing = any(link.kind == "mqtt" for link in settings.links)
    return Outbox(state.outbox_path, settings.outbox, announcing=announcing, endings=endings, seal=seal, clock=clock)


def make_policy(section: PolicySection) -> Policy:
    """The policy that the settings choose, with its parameters under its own names."""
    said = {
        "least_value": section.least_value,
        "threshold": section.threshold_cross_entropy if section.kind == "sedna" else section.threshold,
        "rate": section.rate,
        "pause_s": section.min_time_between_escalations_s,
    }
    return policies.make(section.kind, **{name: said[name] for name in policies.PARAMETERS.get(section.kind, ())})


def cascade_options(section: PolicySection) -> CascadeOptions:
    return CascadeOptions(
        limit_bytes=section.limit_bytes,
        reserve_s=section.deadline_reserve_ms / 1000,
    )


def hedge_options(settings: EdgeSettings) -> HedgeOptions | None:
    """When to ask the full model early; None for never."""
    section = settings.hedge
    if not section.enabled:
        return None
    reserve_s = settings.policy.deadline_reserve_ms / 1000
    return HedgeOptions(section.share, section.burst, section.min_escalation_rate, reserve_s)


def ladder_loader(settings: EdgeSettings) -> LadderLoader | None:
    """Returns what loads further variants of a bundle; None if only one is held."""
    if not settings.adaptation.enabled:
        return None
    from firstline_edge.adaptation.loading import adaptation_options, load_ladder

    return partial(load_ladder, options=adaptation_options(settings))
