"""The page of the audit log."""

from __future__ import annotations

from nicegui import ui

from firstline.console import rollouts_view
from firstline.console.cells import Cell, Column, Listing, address, device_page, moment, rollout_page, rows
from firstline.console.page import Frame, PagedTable, card, empty, search_form
from firstline.console.polling import Watch
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.rollout_documents import AuditPage

ROWS = 50
"""Number of entries on a page."""


def _subject(entry: Entry) -> Cell:
    kind, _, name = entry.subject.partition(":")
    pages = {"device": device_page, "rollout": rollout_page}
    return Cell(entry.subject, pages[kind](name) if kind in pages and name else "")


ENTRIES: tuple[Column[Entry], ...] = (
    Column("number", "Number", lambda entry: str(entry.number), number=True),
    Column("when", "When (UTC)", lambda entry: moment(entry.at_s)),
    Column("who", "Who", lambda entry: entry.actor),
    Column("action", "Action", lambda entry: entry.action),
    Column("subject", "Subject", _subject),
    Column("details", "Details", rollouts_view.decision_text),
)


def entry_rows(page: AuditPage, subject: str, action: str) -> Listing:
    """Returns a page of entries, the newest first."""
    following = ""
    if page.entries and page.after is not None:
        following = address("/audit", subject=subject, action=action, before=str(page.entries[-1].number))
    return Listing(rows(ENTRIES, page.entries, lambda entry: str(entry.number)), following)


def add_pages(watch: Watch) -> None:
    """Adds the page to the application."""

    @ui.page("/audit")
    def _audit(subject: str = "", action: str = "", before: int = 2**53) -> None:
        lead = "Each entry contains the hash of the one before, so that none can be changed, removed or inserted."
        frame = Frame("Audit log", "/audit", lead)
        with frame.main:
            fields = {
                "subject": ("Subject, such as device:cam-7", subject),
                "action": ("Beginning of the action, such as rollout.", action),
            }
            search_form("/audit", "Choose entries", fields)
            with card(classes="mb-4"):
                back = address("/audit", subject=subject, action=action) if before < 2**53 else ""
                table = PagedTable(
                    "Audit log",
                    ENTRIES,
                    "No entry matches." if subject or action else "There is no entry yet.",
                    "Older entries",
                    back,
                )
            with card("Export"):
                empty(
                    "This command writes the entries with a signed head that proves them without the gateway:",
                    "firstline audit export --since 2026-01-01 -o jsonl",
                )
        question = ("audit", subject.strip(), action.strip(), str(before))
        frame.follow(
            lambda: watch.ask(
                question, lambda fleet: fleet.rollouts.audit_page(before, question[1], question[2], limit=ROWS)
            ),
            lambda page: table.show_page(entry_rows(page, subject, action)),
        )
