"""The pages of the profiles that the gateway keeps, and of one."""

from __future__ import annotations

from nicegui import ui

from firstline.console import profiles_view as view
from firstline.console.cells import address
from firstline.console.live_table import Rows
from firstline.console.page_frame import Frame, text
from firstline.console.paging import Following
from firstline.console.polling import Answer, Watch
from firstline_core.errors import NotFoundError
from firstline_core.fleet.profiles import ProfilePage
from firstline_core.profile.profile import Profile

ROWS = 50
"""Most profiles on a page."""


def add_pages(watch: Watch) -> None:
    """Puts the pages at their addresses."""

    @ui.page("/profiles")
    def _profiles(bundle: str = "", machine: str = "", after: str = "") -> None:
        frame = Frame("Profiles", "/profiles")
        with frame.main:
            with ui.element("form").props('method="get" action="/profiles" role="search" aria-label="Choose profiles"'):
                ui.input("Bundle, such as digits", value=bundle).props('name="bundle" outlined dense')
                ui.input("Machine, such as press-7", value=machine).props('name="machine" outlined dense')
                ui.button("Show").props('type="submit" no-caps')
            rows = Rows("Profiles", view.KEPT, "No profile is kept here.")
            first = address("/profiles", bundle=bundle, machine=machine)
            following = Following("More profiles", bool(after), first)

        def show(page: ProfilePage) -> None:
            listing = view.kept_listing(page, bundle=bundle, machine=machine)
            rows.show(listing.rows)
            following.show(listing)

        question = ("profiles", after, bundle.strip(), machine.strip())
        frame.follow(lambda: watch.ask(question, lambda fleet: fleet.profiles.page(*question[1:], ROWS)), show)

    @ui.page("/profiles/{bundle}/{version}/{machine}")
    def _profile(bundle: str, version: int, machine: str) -> None:
        frame = Frame(f"{bundle} {version} on {machine}", "/profiles")
        with frame.main:
            rows = Rows("Points", view.POINTS, "No point was measured.")
            remarks = ui.element("div")
        said: list[str] = []

        def show(profile: Profile) -> None:
            rows.show(view.point_rows(profile))
            found = view.remarks(profile)
            if found != said:
                said[:] = found
                remarks.clear()
                with remarks:
                    for sentence in found:
                        text("p", sentence)

        frame.follow(lambda: _latest(watch, bundle, version, machine), show)


async def _latest(watch: Watch, bundle: str, version: int, machine: str) -> Answer[Profile]:
    """A profile may have megabytes: it is fetched again only where another one is kept."""
    question = ("profiles", "", bundle, machine)
    kept = await watch.ask(question, lambda fleet: fleet.profiles.page(*question[1:]))
    if kept.value is None:
        return Answer(None, kept.heard_s, kept.error)
    entry = next((one for one in kept.value.profiles if one.version == version), None)
    if entry is None:
        missing = NotFoundError(f"No profile of {bundle} version {version} on {machine} is kept any more.")
        return Answer(None, kept.heard_s, kept.error or missing)
    found = await watch.ask(
        ("profile", bundle, str(version), machine, entry.sha256),
        lambda fleet: fleet.profiles.get(bundle, version, machine),
        lasting=True,
    )
    return Answer(found.value, kept.heard_s, kept.error or found.error)
