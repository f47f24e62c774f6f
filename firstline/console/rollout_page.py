"""The page of one rollout: its state, evaluations, decisions and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from nicegui import ui

from firstline.console import rollouts_view as view
from firstline.console.live_table import Rows
from firstline.console.page_frame import Frame, put, text
from firstline.console.polling import Answer, Watch
from firstline.console.rollout_commands import Commands
from firstline.fleet.client import Fleet
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.rollout import Look, RolloutSummary

_ENTRIES = 10_000  # of one rollout's trail; beyond, its page shows no later ones


@dataclass(frozen=True)
class _Evidence:
    """Data that changes only with the rollout's revision, so that it is fetched again only then."""

    looks: tuple[Look, ...]
    trail: tuple[Entry, ...]


def add_pages(watch: Watch) -> None:
    """Puts the page at its address."""

    @ui.page("/rollouts/{rollout}")
    def _rollout(rollout: str) -> None:
        frame = Frame("Rollout", "/rollouts")
        with frame.main:
            standing = _Standing()
            commands = Commands(frame, watch, rollout)
            text("h2", "Stages")
            stages = Rows("Stages", view.STAGES, "It has no stages.")
            evidence = _Shown()

        async def ask() -> Answer[tuple[RolloutSummary, _Evidence]]:
            now = await watch.ask(("rollout", rollout), lambda fleet: fleet.rollouts.get(rollout))
            if now.value is None or now.error is not None:
                return Answer(None, now.heard_s, now.error)
            asked = "evidence", rollout, str(now.value.revision)
            seen = await watch.ask(asked, lambda fleet: _evidence(fleet, rollout), lasting=True)
            if seen.value is None:
                return Answer(None, seen.heard_s, seen.error)
            return Answer((now.value, seen.value), now.heard_s, None)

        def show(found: tuple[RolloutSummary, _Evidence]) -> None:
            summary, seen = found
            frame.name(view.title(summary))
            standing.show(summary)
            commands.show(summary)
            stages.show(view.stage_rows(summary))
            evidence.show(seen)

        frame.follow(ask, show)


def _evidence(fleet: Fleet, rollout: str) -> _Evidence:
    trail = islice(fleet.rollouts.trail(f"rollout:{rollout}"), _ENTRIES)
    return _Evidence(fleet.rollouts.looks(rollout), tuple(trail)[-view.LOOKS :])


class _Standing:
    """How it stands, in words and as a bar."""

    def __init__(self) -> None:
        with ui.element("p"):
            self._state = text("strong")
        self._sentence = text("p").props('role="status"')
        self._progress = ui.element("progress").props('max="1" value="0" aria-label="Devices that have the model"')
        self._counts = text("p")

    def show(self, rollout: RolloutSummary) -> None:
        put(self._state, view.state(rollout))
        self._sentence.set_text(rollout.sentence)
        done, all_of_them = view.progress(rollout)
        self._progress.props["max"], self._progress.props["value"] = max(1, all_of_them), done
        self._counts.set_text(f"Devices: {view.counted(rollout)}.")


class _Shown:
    """The looks with their verdicts, the numbers of one of them, and the decisions."""

    def __init__(self) -> None:
        self._looks: tuple[Look, ...] = ()
        text("h2", "Evidence")
        self._verdicts = Rows(
            "Looks", view.LOOK_COLUMNS, "Nobody has looked yet: the first look comes while it observes."
        )
        self._chosen = (
            ui.select({}, label="Numbers of", on_change=self._numbers).props("outlined dense").classes("choice")
        )
        self._chosen.set_visibility(False)
        self._findings = Rows("Numbers of a look", view.FINDINGS, "")
        text("h2", "Decisions")
        self._decisions = Rows("Decisions", view.DECISIONS, "Nothing was decided yet.")

    def show(self, evidence: _Evidence) -> None:
        if evidence.looks != self._looks or not self._looks:
            newest = self._chosen.value in (None, _key(self._looks))
            self._looks = evidence.looks
            self._verdicts.show(view.look_rows(evidence.looks))
            options = {_key((look,)): view.look_name(look) for look in reversed(evidence.looks[-view.LOOKS :])}
            self._chosen.set_visibility(bool(options))
            self._chosen.set_options(options, value=_key(evidence.looks) if newest else self._chosen.value)
            self._numbers()
        self._decisions.show(view.decision_rows(evidence.trail))

    def _numbers(self) -> None:
        look = next((look for look in self._looks if _key((look,)) == self._chosen.value), None)
        self._findings.show(view.finding_rows(look))


def _key(looks: Sequence[Look]) -> str | None:
    """Of the latest."""
    return f"{looks[-1].stage}.{looks[-1].look}" if looks else None
