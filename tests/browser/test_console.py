"""The console in a real browser with a real gateway."""

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect
from support.console import ROLLOUTS, Fleet, console, console_gateway
from support.gateway import DIGITS
from support.keys import create_key
from support.processes import TierProcess
from support.profiles import profile
from support.waiting import wait_until

from firstline.console.accounts import hash_password
from firstline.fleet.client import open_fleet
from firstline.release.keyring import Keyring
from firstline.release.publishing import publish, push_bundle
from firstline_core.bundle.store import open_bundle
from firstline_core.fleet.update import UpdateState
from firstline_gateway.settings.settings import StoreSection

NAMES = [f"cam-{number:02}" for number in range(20)]
PATIENT_MS = 60_000
expect.set_options(timeout=PATIENT_MS)
PASSWORD = "correct horse battery"
LOCAL = re.compile(r"^(https?|wss?)://127\.0\.0\.1[:/]|^data:|^blob:")
_GREEN = """() => [...document.querySelectorAll('.tone-good, .tone-good *')].filter(
  each => { const [r, g, b] = getComputedStyle(each).color.match(/\\d+/g).map(Number); return g > r + 30 && g > b + 30 }
  ).length"""
# A page that the browser or the console closes may still send: "WebSocket is already in CLOSING or CLOSED state."
_EXPECTED = ("WebSocket connection", "WebSocket is already", "ERR_CONNECTION_REFUSED", "status of 401", "/nothing")
_FOCUS = """() => { const on = document.activeElement, style = getComputedStyle(on);
  const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
  return { words: on.innerText, seen: outlined || style.boxShadow.includes('6px') } }"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TierProcess, StoreSection]]:
    gateway, store = console_gateway(tmp_path_factory.mktemp("gateway"))
    with gateway:
        yield gateway, store


@pytest.fixture(scope="module")
def gateway(served: tuple[TierProcess, StoreSection]) -> TierProcess:
    return served[0]


@pytest.fixture(scope="module")
def fleet(served: tuple[TierProcess, StoreSection]) -> Iterator[Fleet]:
    found = Fleet(*served, NAMES)
    for number, name in enumerate(NAMES):
        found.count(name, 70 + number, 20, 10 - number // 2)
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(gateway: TierProcess, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with console(gateway.url, fleet.key, tmp_path_factory.mktemp("console") / "log") as found:
        yield found


@contextmanager
def watched(
    browser: Browser, secrets: list[str], closed: list[str] | None = None, **options: Any
) -> Iterator[BrowserContext]:
    """A browser's window that must not ask anybody else, complain, or be told a secret.

    Args:
        browser: that opens it.
        secrets: that no page and no message may contain.
        closed: receives the content of pages that are closed earlier than the window.
        options: of the window.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENT_MS)
    urls, complaints, contents = list[str](), list[str](), [] if closed is None else closed
    context.on("request", lambda request: urls.append(request.url))
    context.on("weberror", lambda error: complaints.append(str(error.error)))

    def follow(page: Page) -> None:
        page.on("websocket", lambda socket: (urls.append(socket.url), socket.on("framereceived", note)))

    def note(frame: Any) -> None:
        contents.append(frame if isinstance(frame, str) else frame.decode(errors="replace"))

    def complain(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"{message.text} {message.location['url']}")

    context.on("console", complain)
    context.on("page", follow)
    yield context
    for page in context.pages:
        contents.append(page.content())
    context.close()
    assert [each for each in urls if not LOCAL.match(each)] == []
    assert [each for each in complaints if not any(expected in each for expected in _EXPECTED)] == []
    assert contents and not [secret for secret in secrets if any(secret in each for each in contents)]


@pytest.fixture(scope="module")
def window(browser: Browser, fleet: Fleet) -> Iterator[tuple[BrowserContext, list[str]]]:
    """A window that most tests share, so that the browser loads and compiles the console's scripts once.

    It has an empty page, because a window is gone with its last page, and a new one takes longer than a page.
    """
    closed: list[str] = []
    with watched(browser, [fleet.key], closed) as context:
        context.new_page()
        yield context, closed


@pytest.fixture
def page(window: tuple[BrowserContext, list[str]]) -> Iterator[Page]:
    context, closed = window
    found = context.new_page()
    yield found
    closed.append(found.content())
    found.close()


def started(fleet: Fleet, patience_s: float, bundle: str = "digits") -> tuple[str, list[str]]:
    """A rollout of which the devices of the first stage were told."""
    rollout = fleet.start(patience_s, bundle)
    wait_until(lambda: bool(fleet.offered(rollout)))
    return rollout, fleet.offered(rollout)


@pytest.fixture(scope="module")
def faulty(fleet: Fleet) -> tuple[str, str, list[str]]:
    """Two rollouts: one that a single device installs, and one that none can; and the devices that were told."""
    stalled, devices = started(fleet, 1)
    fleet.say(devices[0], UpdateState.COMMITTED)  # within that second
    failed, same = started(fleet, 3600, "words")
    assert devices == same
    for name in devices:
        fleet.say(name, UpdateState.REJECTED, "self_test_failed", "words")
    return stalled, failed, devices


def shows(page: Page, words: str | re.Pattern[str]) -> None:
    expect(page.locator("main")).to_contain_text(words)


def test_a_click_aborts_a_stalled_rollout(
    page: Page, url: str, fleet: Fleet, faulty: tuple[str, str, list[str]]
) -> None:
    rollout, _, devices = faulty
    page.goto(f"{url}/rollouts/{rollout}")
    shows(page, f"{len(devices) - 1} of {len(devices)} devices have not installed within 1 s")
    page.get_by_role("button", name="Abort…").click()
    dialog = page.get_by_role("dialog", name="Abort digits 2?")
    expect(dialog).to_contain_text(f"The new version stays on 1 device; stopped under way: {len(devices) - 1}")
    dialog.get_by_role("button", name="Abort").click()
    shows(page, "Abort: done.")
    expect(page.locator("strong")).to_have_text("aborted")

    def undone(name: str) -> bool:
        return any(model.undone for model in fleet.say(name).models if model.name == "digits")

    wait_until(lambda: all(undone(name) for name in devices[1:]))
    assert not undone(devices[0])
    found = fleet.ask("GET", f"{ROLLOUTS}/{rollout}")
    assert found["state"] == "aborted" and found["devices"]["done"] == 1
    shows(page, "application:ops")  # who decided it


def test_numbers_and_rule_of_an_abort_are_shown(page: Page, url: str, faulty: tuple[str, str, list[str]]) -> None:
    _, rollout, devices = faulty
    page.goto(f"{url}/rollouts/{rollout}")
    expect(page.locator("strong")).to_have_text(re.compile("^roll"))
    look = page.get_by_role("group", name="Looks").locator("tbody tr").first
    expect(look).to_contain_text(f"100.0% of {len(devices)} installations failed")
    expect(look).to_contain_text("abort")
    numbers = page.get_by_role("group", name="Numbers of a look").locator("tr").filter(has_text="installations")
    expect(numbers).to_contain_text("0.02")
    page.goto(f"{url}/devices/{devices[0]}")
    shows(page, "self_test_failed")


def test_devices_are_found_by_tag_and_model_page_by_page(page: Page, url: str, fleet: Fleet) -> None:
    fleet.ask("PATCH", f"/fleet/v1/devices/{NAMES[3]}", {"tags": {"site": "berlin"}})
    page.goto(f"{url}/devices")
    rows = page.get_by_role("group", name="Devices").locator("tbody tr")
    expect(rows).to_have_count(len(NAMES))
    expect(rows.first).to_contain_text(re.compile(r"cam-00.*\d s|min ago.*digits"))
    page.get_by_label("Tags, such as").fill("site=berlin")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("site=berlin")
    page.goto(f"{url}/devices?model=digits+7")
    shows(page, "No device matches.")
    page.goto(f"{url}/devices?selector=a+b")
    expect(page.get_by_role("alert")).to_contain_text("'a b'")
    page.goto(f"{url}/devices?after={NAMES[17]}")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="From the beginning").click()
    expect(rows).to_have_count(len(NAMES))
    rows.nth(3).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAMES[3])


def test_answers_by_tier_are_drawn(page: Page, url: str) -> None:
    page.goto(url)
    shows(page, "75.7 %")
    expect(page.locator(".chart canvas")).to_be_visible()


@pytest.fixture(scope="module")
def measured(fleet: Fleet) -> str:
    """A device of which a profile is kept, and which is asked for another one."""
    name = NAMES[5]
    fleet.keep(profile(machine=name))
    fleet.ask("POST", f"/fleet/v1/devices/{name}/profiles", {"bundle": "digits", "quick": True})
    return name


def test_profiles_and_profiling_requests_are_shown(page: Page, url: str, fleet: Fleet, measured: str) -> None:
    page.goto(f"{url}/devices/{measured}")
    rows = page.get_by_role("group", name="Requested measurements").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(re.compile(r"digits.*sent"))
    fleet.ask("DELETE", f"/fleet/v1/devices/{measured}/profiles/digits")
    shows(page, "No measurement is requested.")
    profiles = page.get_by_role("group", name="Profiles").locator("tbody tr")
    expect(profiles).to_have_count(1)
    expect(profiles).to_contain_text(re.compile("digits 1.*application:ops"))
    fleet.ask("DELETE", f"/fleet/v1/profiles/digits/versions/1/machines/{measured}")
    shows(page, "The gateway has no profile of this device.")


def focused(page: Page, words: str) -> None:
    """Tabs until what has these words has the focus, all of which can be seen to have it on the way."""
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(_FOCUS)
        assert found["seen"], found
        if found["words"].strip() == words:
            return
    pytest.fail(f"the keyboard does not come to {words!r}")


def test_the_age_of_figures_is_shown(page: Page, url: str, fleet: Fleet) -> None:
    fleet.count(NAMES[18], 100, 20)
    page.goto(f"{url}/devices/{NAMES[18]}")
    expect(page.get_by_text(re.compile(r"^As of \d\d:\d\d:\d\d UTC$"))).to_have_count(1)
    health = page.locator("dl.facts").filter(has_text="Corrections outstanding")
    expect(health).to_contain_text(re.compile(r"Reported\s*\d+(\.\d)? (s|min) ago"))
    expect(page.get_by_role("button", name="Revoke…")).to_be_visible()
    expect(page.get_by_role("button", name="Accept…")).to_be_hidden()  # it is accepted


def test_an_unknown_address_is_named_next_to_the_menu(page: Page, url: str) -> None:
    page.goto(f"{url}/nothing")
    shows(page, "The console has no page /nothing.")
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_count(6)


@pytest.mark.parametrize("path", ["/devices?presence=weird", "/audit?before=yesterday"])
def test_an_unknown_choice_in_an_address_is_ignored(page: Page, url: str, path: str) -> None:
    page.goto(url + path)
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_count(6)
    expect(page).to_have_url(url + path.partition("?")[0])


def test_the_alarm_of_a_device_is_shown_where_people_look(page: Page, url: str, fleet: Fleet) -> None:
    fleet.alarm(NAMES[19])
    page.goto(url)
    attention = page.get_by_role("link", name=re.compile(rf"{NAMES[19]}: its own audits show that digits \d+ breaks"))
    expect(attention).to_have_count(1)
    page.goto(f"{url}/contracts")
    alarms = page.get_by_role("group", name="Alarms of devices").locator("tbody tr")
    expect(alarms).to_contain_text(NAMES[19])
    page.goto(f"{url}/contracts/digits")
    expect(alarms).to_contain_text(NAMES[19])
    page.goto(f"{url}/devices/{NAMES[19]}")
    shows(page, "no: alarm")


def test_every_command_works_with_the_keyboard(page: Page, url: str, fleet: Fleet) -> None:
    rollout, _ = started(fleet, patience_s=3600)
    page.goto(f"{url}/rollouts")
    shows(page, "running: installing")
    focused(page, "Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator(".content")).to_be_focused()
    focused(page, "digits 2")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/rollouts/{rollout}")
    shows(page, "running: installing")
    focused(page, "Pause…")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Pause digits 2?")
    expect(dialog.get_by_role("button", name="Do nothing")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Pause…")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("button", name="Do nothing")).to_be_focused()
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name="Pause")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("strong")).to_have_text(re.compile("^paused"))
    assert fleet.ask("GET", f"{ROLLOUTS}/{rollout}")["state"] == "paused"


def sign_in(page: Page, password: str) -> None:
    page.get_by_label("Name").fill("vera")
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def test_a_viewer_sees_no_refused_button(browser: Browser, fleet: Fleet, gateway: TierProcess, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(f'[[person]]\nname = "vera"\nrole = "viewer"\npassword = "{hash_password(PASSWORD)}"\n')
    accounts.chmod(0o600)
    rollout, (device, *_) = started(fleet, patience_s=3600)
    with watched(browser, [fleet.key, PASSWORD]) as context:
        with console(gateway.url, fleet.key, tmp_path / "log", "--accounts", str(accounts)) as url:
            page = context.new_page()
            page.goto(f"{url}/devices/enrol")
            sign_in(page, "wrong password!")
            expect(page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
            assert httpx.get(url).status_code == 401
            sign_in(page, PASSWORD)
            expect(page.get_by_text("vera", exact=True)).to_be_visible()
            found = fleet.ask("GET", "/fleet/v1/audit?action=person.&before=1000000")["entries"][:2]
            assert [(one["actor"], one["action"]) for one in found] == [
                ("vera via application:ops", "person.sign_in"),
                ("vera via application:ops", "person.refused"),
            ]
            page.goto(f"{url}/devices/enrol")
            expect(page.get_by_text("your role does not enrol devices")).to_be_visible()
            other = context.new_page()
            for tab, path, hidden in (
                (page, "/devices", ("Tag", "Accept")),
                (other, f"/devices/{device}", ("Accept…", "Revoke…", "Decommission…")),
                (other, f"/rollouts/{rollout}", ("Pause…", "Abort…", "Rollback…")),
                (other, "/settings", ("Stop escalations…",)),
            ):
                tab.goto(url + path)
                expect(tab.get_by_text("As of")).to_be_visible()
                for label in hidden:
                    expect(tab.get_by_role("button", name=label, exact=True)).to_have_count(0)
            wait_until(lambda: page.evaluate(_GREEN) > 0)
            other.get_by_role("button", name="Sign out").click()
            expect(other.get_by_label("Password")).to_be_visible()
            expect(page.get_by_role("alert")).to_contain_text("You are signed out")
        wait_until(lambda: page.evaluate(_GREEN) == 0)
        expect(page.get_by_text("Connection lost")).to_be_visible()
    assert (tmp_path / "log").read_text() == ""


@pytest.fixture(scope="module")
def signing_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TierProcess, StoreSection]]:
    """A gateway whose registry has a bundle."""
    folder = tmp_path_factory.mktemp("registry")
    gateway, store = console_gateway(folder)
    with (folder / "gateway.toml").open("a") as config:
        config.write(f'[registry]\nblobs = "{folder / "blobs"}"\n')
    keyring = Keyring(folder / "keys")
    with gateway, open_fleet(gateway.url, create_key(store, "publisher", "operator")) as fleet:
        keyring.init(fleet.registry.online_key(), time.time())
        publish(keyring, fleet.registry, time.time())
        push_bundle(keyring, fleet.registry, open_bundle(DIGITS), {}, time.time())
        yield gateway, store


def test_a_limited_person_rolls_out_to_the_own_devices(
    browser: Browser, signing_gateway: tuple[TierProcess, StoreSection], tmp_path: Path
) -> None:
    accounts = tmp_path / "accounts.toml"
    limited = f'role = "operator"\ndevices = "site=kiel"\npassword = "{hash_password(PASSWORD)}"\n'
    accounts.write_text(f'[[person]]\nname = "vera"\n{limited}')
    accounts.chmod(0o600)
    with (
        closing(Fleet(*signing_gateway, NAMES[:3])) as fleet,
        watched(browser, [fleet.key, PASSWORD]) as context,
        console(signing_gateway[0].url, fleet.key, tmp_path / "log", "--accounts", str(accounts)) as url,
    ):
        fleet.ask("PATCH", f"/fleet/v1/devices/{NAMES[0]}", {"tags": {"site": "kiel"}})
        page = context.new_page()
        page.goto(url)
        sign_in(page, PASSWORD)
        expect(page.get_by_text("vera", exact=True)).to_be_visible()
        page.goto(f"{url}/rollouts/new")
        expect(page.get_by_label("Devices by tags; yours have site=kiel")).to_have_value("site=kiel")
        page.get_by_role("button", name="Create").click()
        expect(page.locator("strong")).to_have_text("approved")
        page.get_by_role("button", name="Start…").click()
        page.get_by_role("dialog").get_by_role("button", name="Start").click()
        expect(page.locator("strong")).to_have_text(re.compile("^running"))
        expect(page.get_by_role("group", name="Decisions")).to_contain_text("vera")


def test_pages_are_stale_without_the_gateway_and_recover(
    window: tuple[BrowserContext, list[str]], url: str, fleet: Fleet, gateway: TierProcess
) -> None:
    """The last test, because rollouts wait for the lease of the killed gateway."""
    rollout, _ = started(fleet, patience_s=3600)
    context, pages = window[0], []
    for path in ("/devices", "/", f"/rollouts/{rollout}"):
        page = context.new_page()
        page.goto(url + path)
        expect(page.get_by_text("As of")).to_be_visible()
        pages.append(page)
    wait_until(lambda: pages[0].evaluate(_GREEN) > 0)
    gateway.kill()
    late = context.new_page()
    late.goto(f"{url}/devices")
    for page in (*pages, late):
        expect(page.get_by_role("alert")).to_contain_text(re.compile(r"Stale since \d\d:\d\d:\d\d UTC"))
        wait_until(lambda page=page: page.evaluate(_GREEN) == 0)
    expect(pages[2].get_by_role("button", name="Abort…")).to_be_disabled()
    gateway.start()
    for page in (*pages, late):
        expect(page.get_by_text("As of")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_empty()
    expect(pages[2].get_by_role("button", name="Abort…")).to_be_enabled()
    wait_until(lambda: pages[0].evaluate(_GREEN) > 0)
