"""The pages of all stored profiles, and of one."""

from __future__ import annotations

from nicegui import ui

from firstline.console import profiles_view as view
from firstline.console.cells import address
from firstline.console.page import Frame, PagedTable, Table, card, search_form, text
from firstline.console.polling import Answer, Watch
from firstline_core.errors import NotFoundError
from firstline_core.fleet.profiles import ProfilePage
from firstline_core.profile.profile import Profile

ROWS = 50
"""Maximum number of profiles on a page."""


def add_pages(watch: Watch) -> None:
    """Adds the pages to the application."""

    @ui.page("/profiles")
    def _profiles(bundle: str = "", machine: str = "", after: str = "") -> None:
        frame = Frame("Profiles", "/profiles")
        with frame.main:
            fields = {
                "bundle": ("Bundle, such as digits", bundle),
                "machine": ("Machine, such as press-7", machine),
            }
            search_form("/profiles", "Choose profiles", fields)
            back = address("/profiles", bundle=bundle, machine=machine) if after else ""
            with card():
                table = PagedTable("Profiles", view.PROFILES, "No profile is kept here.", "More profiles", back)

        def show(page: ProfilePage) -> None:
            table.show_page(view.profile_listing(page, bundle=bundle, machine=machine))

        question = ("profiles", after, bundle.strip(), machine.strip())
        frame.follow(lambda: watch.ask(question, lambda fleet: fleet.profiles.page(*question[1:], ROWS)), show)

    @ui.page("/profiles/{bundle}/{version}/{machine}")
    def _profile(bundle: str, version: int, machine: str) -> None:
        frame = Frame(f"{bundle} {version} on {machine}", "/profiles")
        with frame.main:
            with card():
                points = Table("Points", view.POINTS, "No point was measured.")
            remarks = ui.element("div")
        shown: list[str] = []

        def show(profile: Profile) -> None:
            points.show(view.point_rows(profile))
            sentences = view.remarks(profile)
            if sentences != shown:
                shown[:] = sentences
                remarks.clear()
                with remarks:
                    for sentence in sentences:
                        text("p", sentence)

        frame.follow(lambda: _latest(watch, bundle, version, machine), show)


async def _latest(watch: Watch, bundle: str, version: int, machine: str) -> Answer[Profile]:
    """Fetches a profile only if the gateway stores a newer one, because it may have megabytes."""
    question = ("profiles", "", bundle, machine)
    page = await watch.ask(question, lambda fleet: fleet.profiles.page(*question[1:]))
    if page.value is None:
        return Answer(None, page.heard_s, page.error)
    entry = next((one for one in page.value.profiles if one.version == version), None)
    if entry is None:
        missing = NotFoundError(f"No profile of {bundle} version {version} on {machine} is kept any more.")
        return Answer(None, page.heard_s, page.error or missing)
    profile = await watch.ask(
        ("profile", bundle, str(version), machine, entry.sha256),
        lambda fleet: fleet.profiles.get(bundle, version, machine),
        lasting=True,
    )
    return Answer(profile.value, page.heard_s, page.error or profile.error)
