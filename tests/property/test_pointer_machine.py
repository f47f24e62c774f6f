"""Whatever comes in whatever order, the pointer names a slot that holds what was put there, and a trial ends."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firstline_edge.fleet.updates.model_store import Pointer
from firstline_edge.fleet.updates.state_machine import Slot


class Pointers(RuleBasedStateMachine):
    """A device that is updated, restarted and rolled back; remembers what lies in each slot and what was proven."""

    def __init__(self) -> None:
        super().__init__()
        self.pointer = Pointer()
        self.holds: dict[Slot, int] = {"": 0}
        self.proven = {0}
        self.updates = 0
        self.starts_in_trial = 0

    @precondition(lambda self: not self.pointer.in_trial)
    @rule(tries=st.integers(1, 3))
    def update(self, tries: int) -> None:
        self.updates += 1
        self.pointer = self.pointer.cleared()
        slot = self.pointer.spare
        assert slot not in (self.pointer.slot, self.pointer.previous)
        self.holds[slot] = self.updates
        self.pointer = self.pointer.begin_trial(tries)
        self.starts_in_trial = tries

    @rule()
    def restart(self) -> None:
        tried = self.pointer
        self.pointer = self.pointer.started()
        if tried.in_trial:
            self.starts_in_trial -= 1
            assert self.pointer.in_trial is (self.starts_in_trial >= 0)

    @precondition(lambda self: self.pointer.in_trial)
    @rule()
    def commit(self) -> None:
        self.proven.add(self.holds[self.pointer.slot])
        self.pointer = self.pointer.committed()

    @rule()
    def roll_back(self) -> None:
        self.pointer = self.pointer.reverted()

    @invariant()
    def what_runs_was_proven_or_is_being_tried(self) -> None:
        running = self.holds[self.pointer.slot]
        assert running in self.proven or self.pointer.in_trial
        assert self.holds[self.pointer.previous] in self.proven


TestPointers = Pointers.TestCase
