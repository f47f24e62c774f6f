"""Makes the choices that model files leave open: by data if it is clear, else by a person from a contact sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstline.workbench.decodings import READ_ALIKE, DecodingDecision, Trials, decide
from firstline.workbench.pairing.contact_sheet import write_contact_sheet
from firstline.workbench.recognition.reading import Choice, Reading
from firstline_core.errors import ConfigError
from firstline_core.types import Arrays


@dataclass(frozen=True, slots=True)
class Settler:
    """Settles the choices of the models of a pair.

    Attributes:
        truth: labels of the trials' rows; None without any.
        chosen: numbers that a person has chosen, by role, in the order of the questions.
        folder: takes contact sheets.
    """

    truth: Arrays | None
    chosen: Mapping[str, Sequence[int]]
    folder: Path

    def settle_all(self, trials: Mapping[str, Trials], readings: Mapping[str, Reading]) -> dict[str, Reading]:
        """Settles the models of a pair; the one with fewer unknown properties comes first, and judges the other.

        Args:
            trials: by role.
            readings: by role.

        Returns:
            The readings without open choices, with a sentence about how each was made, in the order of settling.

        Raises:
            ConfigError: a person has to choose, with the name of the contact sheet; or a number of a person answers no
                question.
            FirstlineError: a model does not run with its steps.
        """
        order = sorted(readings, key=lambda role: (_unknown(readings[role]), role != "full"))
        settled: dict[str, Reading] = {}
        for role in order:
            shared = [reading.standardized for reading in settled.values()]
            others = [trials[other].outputs(reading) for other, reading in settled.items()]
            if not others and len(order) > 1 and self.truth is None and _unknown(readings[role]):
                others = [trials[order[1]].outputs(way) for way in _ways(readings[order[1]])]
            settled[role] = self._settle(role, trials[role], readings[role], others, shared)
        return settled

    def _settle(
        self, role: str, trials: Trials, reading: Reading, others: Sequence[Arrays], shared: Sequence[str]
    ) -> Reading:
        chosen = list(self.chosen.get(role, ()))
        for choice in reading.choices:
            decision = decide(trials, reading, choice, truth=self.truth, others=others)
            if choice.field == "standardized" and shared and decision.value not in shared:
                why = f"the other model of the pair takes {Choice.meaning(shared[0])}, but of this one {decision.why}"
                decision = replace(decision, sure=False, why=why)
            if not decision.sure:
                sheet = self.folder / f"contact-{role}-{choice.field}.png"
                values = write_contact_sheet(sheet, trials, reading, decision)
                decision = _asked(role, decision, values, chosen, sheet)
            reading = reading.with_value(choice, decision.value).noted(decision.why)
        if chosen:
            answer = "nothing more" if len(chosen) < len(self.chosen[role]) else "nothing"
            raise ConfigError(
                f"--choose {role}={chosen[0]} answers no question: {answer} was asked about the {role} model. Leave it "
                "out."
            )
        trials.outputs(reading)  # fails if the model does not run with these steps
        return reading


def _unknown(reading: Reading) -> int:
    return sum(not choice.known for choice in reading.choices)


def _ways(reading: Reading) -> list[Reading]:
    """Returns the reading with each value of the properties that only data tell."""
    ways = [reading]
    for choice in reading.choices:
        if choice.field in READ_ALIKE and not choice.known:
            ways = [way.with_value(choice, value) for way in ways for value in choice.values]
    return ways


def _asked(
    role: str, decision: DecodingDecision, values: Sequence[str], chosen: list[int], sheet: Path
) -> DecodingDecision:
    """Returns the decision with the value that a person chose, from the contact sheet if there is one."""
    listed = "; ".join(f"{number}: {Choice.meaning(value)}" for number, value in enumerate(values, 1))
    if not chosen:
        look = f"Look at {sheet}, and repeat" if sheet.is_file() else "Repeat"
        raise ConfigError(
            f"The {role} model needs your choice: {decision.why}. {look} the command with --choose {role}=N ({listed})."
        )
    number = chosen.pop(0)
    if not 1 <= number <= len(values):
        raise ConfigError(f"--choose {role}={number}: the choice has the numbers 1 to {len(values)} ({listed}).")
    value = values[number - 1]
    source = f"from {sheet.name}" if sheet.is_file() else "by --choose"
    why = f"{Choice.meaning(value)}: chosen {source}"
    return DecodingDecision(decision.choice, value, sure=True, why=why, figures=decision.figures)
