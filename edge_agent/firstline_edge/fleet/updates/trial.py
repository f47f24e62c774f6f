"""A bundle's trial on this device: it answers requests, is observed, and is accepted or rolled back.

Which slot runs, and whether it is being tried, says the pointer alone (`pointer.py`). It is on the disk before what it
says is done; only going back waits for no disk: what ran before answers at once, and a restart that knows nothing of
that spends one more try.
"""

from __future__ import annotations

from firstline_core.errors import FirstlineError
from firstline_core.fleet.update import UpdateState
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.means import Means

log = logger(__name__)

_LOOK_S = 5.0


class Trial:
    """Of one model.

    Args:
        name: of the model.
        means: of this device.
    """

    def __init__(self, name: str, means: Means) -> None:
        self._name = name
        self._means = means
        self._since_s: float | None = None  # in this process

    async def begin(self) -> None:
        """Has the other slot test itself, and puts it before requests.

        Raises:
            UpdateError: it does not pass.
            OSError: the disk refuses; the previous model runs.
        """
        means, name = self._means, self._name
        history = means.history
        record = history.records[name]
        prepared = await means.serving.prepare(history.slots(name).path(record.slot), trial=True)
        tried = means.next(record, UpdateState.TRIAL)
        await means.off_loop(history.begin_trial, name, means.trials.tries, tried)
        means.tell(name)
        self._since_s = means.clock.monotonic_s()
        await means.serving.exchange(name, prepared)

    async def look(self) -> float:
        """Commits what has answered long enough; goes back where it cannot. Seconds after which to look again.

        Raises:
            OSError: the disk refuses; the trial continues.
        """
        means, name = self._means, self._name
        pointer = means.history.pointer(name)
        if not pointer.in_trial:  # the disk refused the record
            await means.off_loop(means.history.bring_up, name, means.now_s())
            means.tell(name)
            return 0.0
        if means.serving.failed(name):
            await self.give_up("errors", "Too many requests got no answer while it was being tried.")
            return 0.0
        if self._since_s is None:
            self._since_s = means.clock.monotonic_s()
        left_s = self._since_s + means.trials.trial_s - means.clock.monotonic_s()
        if left_s > 0:
            return min(left_s, _LOOK_S)
        await means.off_loop(means.history.point, name, pointer.committed())
        await means.note(name, UpdateState.COMMITTED)
        return 0.0

    async def give_up(self, reason: str, message: str) -> None:
        """Rolls back to the previous model."""
        means = self._means
        try:
            await means.off_loop(means.history.give_up, self._name, reason, message, means.now_s())
        except OSError as error:
            log.error("going back is not on the disk yet", model=self._name, error=str(error))
        await self.answer_as_before()

    async def roll_back(self) -> None:
        """Rolls back on request.

        Raises:
            UnknownModelError, RequestError: see `History.roll_back`.
        """
        means = self._means
        try:
            await means.off_loop(means.history.roll_back, self._name, means.now_s())
        except OSError as error:
            log.error("going back is not on the disk yet", model=self._name, error=str(error))
        await self.answer_as_before()

    async def answer_as_before(self) -> None:
        """Loads the model of the pointer; if it cannot run, the bundle that the device was set up with."""
        means, name = self._means, self._name
        self._since_s = None
        means.tell(name)
        prepared = None
        for place in (means.history.path(name, means.history.pointer(name).slot), means.serving.place(name)):
            if place is None or prepared is not None:
                continue
            try:
                prepared = await means.serving.prepare(place, trial=False)
            except (FirstlineError, OSError) as error:
                log.error("what ran before cannot run", model=name, error=str(error))
        await means.serving.exchange(name, prepared)
