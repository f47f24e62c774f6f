"""A configuration of the fleet over the device's own settings: whether it is allowed, and its application.

The device's own file has the last word: the fleet cannot change what it names in `fleet.locked`, a budget that it sets
may be made smaller and not larger, and `policy.min_threshold` may be raised and not lowered. A configuration that asks
for more is refused as a whole, so that a device runs exactly the configuration that it reports.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.fleet.configuration import Configuration
from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.budgets.from_settings import exchange
from firstline_edge.budgets.spending import Spending
from firstline_edge.cascade.cascade import TierRouter, policy_from
from firstline_edge.fleet.updates.trial import has_failed
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.settings.check import check
from firstline_edge.settings.settings import EdgeSettings, link_names


def changed_settings(own: EdgeSettings, configuration: Configuration) -> EdgeSettings:
    """Returns the device's settings with the values of a configuration.

    Raises:
        ConfigError: this device does not allow it, or it is invalid here.
    """
    changed = {}
    for section, values in configuration.changes.items():
        before = getattr(own, section)
        for key, value in values.items():
            _check_bound(own, f"{section}.{key}", getattr(before, key), value)
        try:
            changed[section] = msgspec.convert({**msgspec.to_builtins(before), **values}, type(before))
        except msgspec.ValidationError as error:
            raise ConfigError(f"What is set in [{section}] cannot be set on this device: {error}.") from error
    settings = msgspec.structs.replace(own, **changed)
    check(settings)
    return settings


def _check_bound(own: EdgeSettings, name: str, before: object, value: object) -> None:
    section = name.partition(".")[0]
    if section in own.fleet.locked or name in own.fleet.locked:
        raise ConfigError(f"It sets {name}, which this device keeps to itself (fleet.locked).")
    if not isinstance(before, int | float) or not isinstance(value, int | float):
        return
    if section == "budget" and before and (not value or value > before):
        raise ConfigError(
            f"It sets {name} to {value:g}{'' if value else ', which is no limit'}; this device's own file allows "
            f"{before:g}, and the fleet may only set less."
        )
    if name == "policy.min_threshold" and value < before:
        raise ConfigError(
            f"It sets {name} to {value:g}; this device's own file demands {before:g}, and the fleet may only set more."
        )


class SettingsAdoption:
    """Applies other settings to a running agent, and counts its failures since then.

    All settings are exchanged in one turn of the event loop; a running request finishes each row under the settings
    with which the row began. Only values that `firstline_core.fleet.configuration` can set are exchanged.

    Args:
        models: of the agent.
        router: takes the policy and the minimum threshold.
        certificates: takes the effect of an alarm.
        auditor: takes the cost limits of audits.
        spending: takes budgets and costs; None if nothing has a price.
        answered: returns the rows of a model so far, and those without an answer.
    """

    def __init__(
        self,
        *,
        models: Models,
        router: TierRouter,
        certificates: CertificateStates,
        auditor: Auditor,
        spending: Spending | None,
        answered: Callable[[DeviceModel], tuple[int, int]],
    ) -> None:
        self._models = models
        self._router = router
        self._certificates = certificates
        self._auditor = auditor
        self._spending = spending
        self._answered = answered
        self._before = (0, 0)

    def adopt(self, settings: EdgeSettings) -> None:
        """Exchanges the settings, and begins to count failures."""
        self._before = self._counts()
        policy = policy_from(settings.policy)
        self._router.adopt(policy, settings.policy.min_threshold)
        self._certificates.adopt(settings.audit)
        self._auditor.adopt(settings.audit, policy.certifies)
        if self._spending is not None:
            exchange(self._spending, settings, link_names(settings.links))

    def failed(self) -> bool:
        """Returns whether more than half of the rows since the latest exchange got no answer."""
        return has_failed(self._before, self._counts())

    def _counts(self) -> tuple[int, int]:
        counts = [self._answered(device_model) for device_model in self._models.all]
        return sum(rows for rows, _ in counts), sum(errors for _, errors in counts)
