"""Whatever comes in whatever order, the running slot holds what was put there, and a trial ends."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firstline_core.fleet.twin import DesiredModel
from firstline_core.fleet.update import UpdateState
from firstline_edge.fleet.updates.installed import Installed, UpdateRecord
from firstline_edge.fleet.updates.model_store import Slot


class Slots(RuleBasedStateMachine):
    """A device that is updated, restarted and rolled back; remembers what lies in each slot and what was proven."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Installed[Slot, DesiredModel] = Installed()
        self.holds: dict[Slot | None, int] = {None: 0}
        self.proven = {0}
        self.updates = 0
        self.starts_in_trial = 0

    @precondition(lambda self: not self.state.in_trial)
    @rule(tries=st.integers(1, 3))
    def update(self, tries: int) -> None:
        self.updates += 1
        slot: Slot = "b" if self.state.running == "a" else "a"
        record = UpdateRecord(DesiredModel("m", self.updates, "a" * 64), UpdateState.STAGED)
        self.state = self.state.begin_install(slot, record)
        self.holds[slot] = self.updates
        self.what_runs_was_proven_or_is_being_tried()
        self.state = self.state.begin_trial(tries, 0.0)
        self.starts_in_trial = tries

    @rule()
    def restart(self) -> None:
        tried = self.state
        self.state = self.state.started(0.0)
        if tried.in_trial:
            self.starts_in_trial -= 1
            assert self.state.in_trial is (self.starts_in_trial >= 0)

    @precondition(lambda self: self.state.in_trial)
    @rule()
    def commit(self) -> None:
        self.proven.add(self.holds[self.state.running])
        self.state = self.state.committed(0.0)

    @rule()
    def roll_back(self) -> None:
        self.state = self.state.rolled_back("asked", "", 0.0)

    @invariant()
    def what_runs_was_proven_or_is_being_tried(self) -> None:
        running = self.holds[self.state.running]
        assert running in self.proven or self.state.in_trial
        assert self.holds[self.state.previous] in self.proven


TestSlots = Slots.TestCase
