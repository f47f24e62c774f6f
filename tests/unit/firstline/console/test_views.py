"""What the pages say, from what the gateway answers."""

import msgspec
import pytest
from msgspec.structs import replace

from firstline.console import answers_view, audit_page, contracts_view, devices_view, overview_view, rollouts_view
from firstline.console.cells import Cell, Tone, address, moment, number, plain
from firstline.fleet.client import Fleet
from firstline.fleet.wording import duration
from firstline_core.errors import ConfigError, LinkDownError, RequestError
from firstline_core.fleet import twin
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.profiles import ProfileRequest
from firstline_core.fleet.rest import (
    AuditResult,
    ContractState,
    ContractStates,
    DeviceAlarm,
    Evidence,
    ExpiringCertificate,
    FleetDevice,
    FleetDevicePage,
    FleetOverview,
    Outbox,
    Presence,
    Sort,
    TierCounts,
    TierHistory,
)
from firstline_core.fleet.rollout_documents import AuditPage, FindingState, Look, RolloutPage, RolloutSummary
from firstline_core.fleet.telemetry import DeviceHealth, ModelCounts, Telemetry
from firstline_core.fleet.update import UpdateState
from firstline_core.hardware.catalogue import Catalogue, Memory, Processor, catalogue_facts

DEVICE = FleetDevice(
    name="cam/1",
    tags={"site": "berlin"},
    accepted=True,
    online=True,
    last_seen_age_s=12.3,
    first_seen_s=1.7e9,
    reported=twin.Reported("s", 1, 3, (twin.RunningModel("digits", 1, "edge-onnx", "ab" * 32, certified=True),)),
    desired=twin.Desired(3, (twin.DesiredModel("digits", 2, "0" * 64),)),
)


CHOSEN = devices_view.Chosen(selector="site=berlin")


def updating(*updates: twin.Update) -> FleetDevice:
    assert DEVICE.reported is not None
    return replace(DEVICE, reported=replace(DEVICE.reported, updates=updates))


@pytest.mark.parametrize(
    ("device", "words", "tone"),
    [
        (DEVICE, "12 s ago", Tone.GOOD),
        (replace(DEVICE, last_seen_age_s=901.0), "15 min ago, late", Tone.BAD),
        (replace(DEVICE, online=False), "12 s ago, late", Tone.BAD),
        (replace(DEVICE, revoked=True), "12 s ago, revoked", Tone.BAD),
        (replace(DEVICE, accepted=False), "12 s ago, not accepted", Tone.BUSY),
        (replace(DEVICE, last_seen_age_s=None), "never, asleep", Tone.BUSY),
    ],
)
def test_only_an_online_device_has_the_good_tone(device: FleetDevice, words: str, tone: Tone) -> None:
    assert devices_view.last_seen(device) == Cell(words, tone=tone)


def test_the_row_of_a_device() -> None:
    listing = devices_view.device_rows(FleetDevicePage((DEVICE,), "cam/1"), CHOSEN)
    assert listing.following == "/devices?selector=site%3Dberlin&after=cam%2F1"
    (row,) = listing.rows
    assert row["device"] == Cell("cam/1", "/devices/cam%2F1")
    assert {name: row[name].text for name in ("runs", "desired", "update", "tags")} == {
        "runs": "digits 1",
        "desired": "digits 2",
        "update": "-",
        "tags": "site=berlin",
    }
    assert set(plain(row)) == {"key", *(column.name for column in devices_view.DEVICES)}
    assert devices_view.device_rows(FleetDevicePage((), None), CHOSEN).following == ""


@pytest.mark.parametrize("state", UpdateState)
def test_every_state_of_an_update_has_a_text(state: UpdateState) -> None:
    update = twin.Update(
        "digits", 2, state, received_bytes=1, total_bytes=4, reason="disk" if state == "failed" else ""
    )
    cell = devices_view.device_rows(FleetDevicePage((updating(update),), None), CHOSEN).rows[0]["update"]
    assert cell.text.startswith(f"digits 2 {state.replace('_', ' ')}")
    assert (cell.tone is Tone.GOOD) is (state is UpdateState.COMMITTED)
    assert ("25%" in cell.text) is (state is UpdateState.DOWNLOADING)
    assert ("(disk)" in cell.text) is (state is UpdateState.FAILED)


def test_the_worst_of_several_updates_determines_the_tone() -> None:
    device = updating(twin.Update("a", 2, UpdateState.COMMITTED), twin.Update("b", 2, UpdateState.REJECTED))
    assert devices_view.device_rows(FleetDevicePage((device,), None), CHOSEN).rows[0]["update"].tone is Tone.BAD


def test_the_page_of_a_device() -> None:
    device = updating(
        twin.Update("digits", 2, UpdateState.ROLLED_BACK, rollout="r1", reason="tries", message="Three starts.")
    )
    facts = dict(devices_view.facts(device))
    assert facts["Desired state received"].text == "yes" and facts["Tags"].text == "site=berlin"
    (model,) = devices_view.model_rows(device, ())
    assert (model["digest"].text, model["certified"].text) == ("ab" * 6, "yes")
    (update,) = devices_view.update_rows(device)
    assert update["why"].text == "tries Three starts." and update["rollout"].href == "/rollouts/r1"
    unheard = replace(device, reported=None)
    assert len(devices_view.facts(unheard)) == 5
    assert devices_view.model_rows(unheard, ()) == devices_view.update_rows(unheard) == []
    assert devices_view.hardware_rows(unheard) == []


def test_hardware_is_shown_as_the_device_reports_it() -> None:
    processor = Processor("Cortex-A76", "aarch64", 4, 4.0, ("asimddp",))
    found = Catalogue("f" * 16, "Raspberry Pi 5", "6.6", processor, Memory(8 << 30), measured=True)
    device = replace(DEVICE, reported=twin.Reported("s", 1, hardware=found))
    rows = devices_view.hardware_rows(device)
    assert [(row["part"].text, row["value"].text) for row in rows] == catalogue_facts(found)
    assert len({row["key"].text for row in rows}) == len(rows)


def test_a_model_is_a_name_with_an_optional_version() -> None:
    assert devices_view.model_of("") == ("", None)
    assert devices_view.model_of(" digits ") == ("digits", None)
    assert devices_view.model_of("digits 2") == ("digits", 2)
    with pytest.raises(RequestError, match="is not a model"):
        devices_view.model_of("digits two")


LOOK = Look(
    stage=0,
    look=3,
    at_s=1.7e9,
    decision="abort",
    rule="latency",
    sentence="latency: worse.",
    findings=(
        FindingState("latency", 0.5, 0.1, 0.18, 1e-6, 1e-4, 0.2, (10, 90), 0.7),
        FindingState("drift", None, None, 0.1, 1.0, 1e-4, None, (0, 90)),
    ),
)
ROLLOUT = RolloutSummary(
    id="r1",
    bundle="digits",
    version=2,
    state="running",
    stage=1,
    stages=2,
    phase="observing",
    sentence="Stage 2 of 2 is observed for 60 s.",
    revision=7,
    created_by="application:ops",
    created_s=1.7e9,
    approved_by="",
    superseded_by="",
    devices={"done": 3, "under_way": 1},
    control=6,
    consequences={"abort": "3 devices keep the new version."},
    definition={"stages": [{"share": 0.1, "soak_s": 5400.0}, {"share": 1, "per_minute": 6}], "held_back": 0.05},
)


def test_a_rollout_and_its_stages() -> None:
    (row,) = rollouts_view.rollout_rows(RolloutPage((ROLLOUT,), None)).rows
    assert row["rollout"] == Cell("digits 2", "/rollouts/r1")
    assert row["state"] == Cell("running: observing", tone=Tone.BUSY)
    assert row["devices"].text == "3 done, 1 under way, 6 in the control group"
    assert rollouts_view.progress(ROLLOUT) == (3, 4)
    rows = rollouts_view.stage_rows(ROLLOUT)
    assert [row["state"].text for row in rows] == ["promoted", "running: observing", "to come"]
    assert [row["share"].text for row in rows] == ["10 %", "100 %", "5 %"]
    assert [row["pace"].text for row in rows] == ["all at once", "6", "as the last stage"]
    assert rows[0]["soak"].text == "1.5 h"


@pytest.mark.parametrize(
    ("state", "stage", "expected"),
    [
        ("draft", 0, ["to come", "to come", "to come"]),
        ("completed", 2, ["promoted", "promoted", "has the model"]),
        ("rolled_back", 0, ["rolled back", "to come", "to come"]),
    ],
)
def test_the_states_of_stages_follow_the_rollout(state: str, stage: int, expected: list[str]) -> None:
    found = rollouts_view.stage_rows(replace(ROLLOUT, state=state, stage=stage, phase=""))
    assert [row["state"].text for row in found] == expected


def test_evidence_has_the_numbers_and_the_rule_of_the_gateway() -> None:
    looks = [replace(LOOK, look=number) for number in range(30)]
    rows = rollouts_view.look_rows(looks)
    assert len(rows) == rollouts_view.LOOKS and rows[0]["look"].text == "stage 1, look 29"
    assert rows[0]["verdict"] == Cell("abort", tone=Tone.BAD) and rows[0]["rule"].text == "latency"
    latency, drift = rollouts_view.finding_rows(LOOK)
    assert latency["figure"].tone is Tone.BAD and drift["figure"].tone is Tone.PLAIN
    assert [latency[name].text for name in ("treated", "control", "p", "level", "devices")] == [
        "0.5",
        "0.1",
        "1e-06",
        "0.0001",
        "10 / 90",
    ]
    assert drift["treated"].text == drift["find"].text == "-"
    assert rollouts_view.finding_rows(None) == []


def test_decisions_have_an_actor_or_a_rule() -> None:
    details = {"stage": 0, "devices": 4, "control": 6}
    entries = [  # newest last
        Entry(1, 1.7e9, "application:ops", "rollout.create", "rollout:r1", '{"bundle": "digits"}', "0" * 64),
        Entry(2, 1.7e9, "rule:order", "rollout.stage", "rollout:r1", msgspec.json.encode(details).decode(), "0" * 64),
        Entry(3, 1.7e9, "rule:latency", "rollout.abort", "rollout:r1", '{"sentence": "Worse."}', "0" * 64),
    ]
    alarm = Entry(
        4, 1.7e9, "rule:contract", "contract.device_alarm", "device:a", '{"model": "d", "event": ""}', "0" * 64
    )
    assert rollouts_view.decision_text(alarm) == "model: d"
    rows = rollouts_view.decision_rows(entries[::-1])
    assert [row["details"].text for row in rows] == ["Worse.", "stage 1, 4 devices, 6 control", "-"]
    assert rows[0]["who"].text == "rule:latency" and rows[0]["action"].text == "abort"


def history(*points: tuple[float, int, int, int]) -> TierHistory:
    return TierHistory(300.0, ("digits",), tuple(TierCounts(*point) for point in points))


def test_shares_are_added_up_to_the_spans_of_a_chart() -> None:
    tier_history = history(*((300.0 * index, 8, 2, 0) for index in range(576)))
    span_s, found = answers_view.shares(tier_history)
    assert len(found) <= answers_view.POINTS and span_s * answers_view.POINTS >= answers_view.HOURS * 3600
    assert span_s == 900 and found[0].rows == 30 and found[0].percent("edge") == 80


def test_answers_by_tier_are_described_and_drawn_to_100_percent() -> None:
    span_s, found = answers_view.shares(history((0.0, 70, 20, 10), (300.0, 0, 0, 0)))
    assert answers_view.summary(found) == (
        "Of 100 rows in the last 24 hours: 70.0 % on the device, 20.0 % by the full model, 10.0 % no answer."
    )
    drawn = answers_view.chart(found, span_s, 600.0)
    assert [series["data"][0] for series in drawn["series"]] == [
        [450_000.0, 70.0],
        [450_000.0, 20.0],
        [450_000.0, 10.0],
    ]
    assert drawn["aria"]["label"]["description"] == answers_view.summary(found)
    assert "There were no requests" in answers_view.summary([])


PROMISE = ContractState(
    "yard", "3", "edge", None, "Edge answers of yard 3 differ.", AuditResult.HOLDS, 0.05, 900, 313, 0.05
)
OVERVIEW = FleetOverview(
    at_s=1.7e9,
    devices={Presence.ONLINE: 4, Presence.LATE: 2},
    unaccepted=1,
    tag="site",
    by_tag={"": {Presence.ONLINE: 1}, "kiel": {Presence.ONLINE: 3, Presence.LATE: 2}},
    agent_versions={"1.1": 1, "1.2": 5},
    outboxes=(Outbox("cam/1", 37, 90.0, 42.0),),
    expiring=(ExpiringCertificate("cam/1", 1.7e9 + 86_400), ExpiringCertificate("cam/2", 1.7e9 - 1)),
    expiring_count=2,
    waiting=(ROLLOUT,),
    reported_s=(42.0, 700.0),
)


def test_the_overview_counts_devices_and_promises() -> None:
    tiles = {tile.label: tile for tile in overview_view.device_tiles(OVERVIEW)}
    assert {label: tile.number for label, tile in tiles.items()} == {
        "Online": 4,
        "Late: silent for 15 min": 2,
        "Asleep: silent for 7 d": 0,
        "Revoked": 0,
        "Not accepted": 1,
    }
    late = tiles["Late: silent for 15 min"]
    assert late.tone is Tone.BAD and tiles["Revoked"].tone is Tone.PLAIN
    assert late.href == "/devices?presence=late"
    old = replace(PROMISE, served=False, state=AuditResult.ALARMED)
    unaudited = replace(PROMISE, state=AuditResult.NOT_AUDITED, audits=0)
    found = overview_view.contract_tiles(ContractStates((PROMISE, old), (unaudited,)))
    assert [tile.number for tile in found] == [1, 0, 0, 1]
    rows = overview_view.tag_rows(OVERVIEW)
    assert rows[0]["value"] == Cell("without site", "/devices?selector=%21site")
    assert [rows[1][name].text for name in ("value", "all", "late")] == ["kiel", "5", "2"]
    assert [row["version"].text for row in overview_view.agent_rows(OVERVIEW)] == ["1.2", "1.1"]
    (outbox,) = overview_view.outbox_rows(OVERVIEW)
    assert (outbox["oldest"].text, outbox["reported"].text) == ("1.5 min", "42 s ago")
    assert overview_view.report_ages(OVERVIEW) == "From the latest report of each device, 42 s to 12 min old."
    same = replace(OVERVIEW, reported_s=(42.0, 42.3))
    assert overview_view.report_ages(same) == "From the latest report of each device, 42 s old."
    assert overview_view.report_ages(replace(OVERVIEW, reported_s=None)) == "No device has reported yet."


def test_attention_names_what_a_person_has_to_do() -> None:
    finding = "missed person: 12 % of 140 audits in which it can occur; promised 5 %"
    broken = replace(PROMISE, state=AuditResult.ALARMED, finding=finding, alarmed_since="2026-11-21T00:00:00+00:00")
    data = overview_view.OverviewData(OVERVIEW, ContractStates((broken, PROMISE)), history())
    assert [(one.sentence, one.href) for one in overview_view.attention(data)] == [
        (f"yard 3 breaks its promise: {finding}.", "/contracts/yard"),
        ("digits 2 waits for a person: Stage 2 of 2 is observed for 60 s.", "/rollouts/r1"),
        ("2 devices lost the connection, or sent no message for 15 minutes.", "/devices?presence=late&sort=last_seen"),
        ("1 device must be accepted, and get no models before.", "/devices?accepted=false"),
        ("The certificate of cam/1 ends in 1 d and was not renewed.", "/devices/cam%2F1"),
        ("The certificate of cam/2 has ended and was not renewed.", "/devices/cam%2F2"),
    ]
    quiet = replace(OVERVIEW, devices={Presence.ONLINE: 4}, unaccepted=0, expiring=(), expiring_count=0, waiting=())
    assert overview_view.attention(overview_view.OverviewData(quiet, ContractStates((PROMISE,)), history())) == []


def test_the_figures_of_all_answers() -> None:
    tier_history = TierHistory(
        300.0, ("digits",), (TierCounts(0.0, 70, 20, 10, 90, 900, 7_250_000, 1500), TierCounts(300.0, 0, 0, 0))
    )
    assert dict(overview_view.answer_figures(tier_history)) == {
        "Answers": "100",
        "On the device": "70.0 %",
        "Mean latency": "10 ms",
        "Without answer": "10",
        "Input not sent": "7.2 MB",
        "Energy saved": "1.5 J",
    }
    quiet = dict(overview_view.answer_figures(history()))
    assert (quiet["Mean latency"], quiet["Energy saved"]) == ("-", "-")


def test_promises_are_listed_with_what_to_do() -> None:
    alarmed = replace(PROMISE, state=AuditResult.ALARMED, bundle="door", alarmed_since="2026-11-21", risk=0.12)
    early = replace(PROMISE, state=AuditResult.TOO_LITTLE_EVIDENCE, audits=13)
    unaudited = replace(PROMISE, state=AuditResult.NOT_AUDITED, audits=0, bundle="gate")
    states = ContractStates((PROMISE, early, alarmed), (unaudited,), delta=0.05)
    rows = contracts_view.contract_rows(states)
    assert [row["state"].text for row in rows] == ["Alarmed", "Holds", "Too little evidence", "Not audited"]
    assert rows[0]["promise"].href == "/contracts/door" and rows[0]["risk"].text == "12 %"
    assert [row["audits"].text for row in rows] == ["900", "900", "13 of 313", "0 of 313"]
    assert len(contracts_view.contract_rows(states, "alarmed")) == 1
    words = {one.state: " ".join(contracts_view.advice(one, states)) for one in (PROMISE, alarmed, early, unaudited)}
    assert "certify the bundle again" in words[AuditResult.ALARMED]
    assert "300 further audits" in words[AuditResult.TOO_LITTLE_EVIDENCE]
    assert "audit.per_hour" in words[AuditResult.NOT_AUDITED] and words[AuditResult.HOLDS].startswith("Nothing")
    doubtful = replace(PROMISE, state=AuditResult.TOO_LITTLE_EVIDENCE, risk=0.06)
    assert "more errors than promised" in contracts_view.advice(doubtful, states)[0]


def test_event_promise_alarms_at_its_own_level() -> None:
    one_of_three = replace(PROMISE, event="missed person", level=0.05 / 3, e_value=30.0)
    assert dict(contracts_view.figures(one_of_three))["Evidence against it"] == "30 of 60"
    drawn = contracts_view.chart(one_of_three)
    assert drawn["series"][0]["markLine"]["data"][0]["yAxis"] == pytest.approx(60)
    assert drawn["yAxis"]["max"] == 1000


def test_the_alarm_of_a_device_names_the_broken_promise() -> None:
    (event, for_all) = (DeviceAlarm("door", "1", "cam", "2026-11-21", None, name) for name in ("missed person", None))
    shown = contracts_view.alarm_rows(ContractStates((), device_alarms=(event, for_all)))
    assert [row["event"].text for row in shown] == ["missed person", "all rows"]
    assert shown[0]["version"] == Cell("door 1", "/contracts/door")


def test_lasting_device_alarm_shows_on_overview_contract_and_page() -> None:
    lasting = DeviceAlarm("digits", "1", "cam/1", "2026-11-21", None, "missed person")
    ended = replace(lasting, device="cam/2", ended="2026-11-22")
    variant = replace(lasting, edge_digest="b" * 64)
    quiet = replace(OVERVIEW, devices={Presence.ONLINE: 4}, unaccepted=0, expiring=(), expiring_count=0, waiting=())
    promise = replace(PROMISE, bundle="digits", version="1", state=AuditResult.TOO_LITTLE_EVIDENCE, audits=13)
    states = ContractStates((promise,), device_alarms=(lasting, variant, ended))
    assert len({row["key"].text for row in contracts_view.alarm_rows(states)}) == 3
    sentence = "cam/1: its own audits show that digits 1 breaks its promise there (missed person)."
    (shown,) = overview_view.attention(overview_view.OverviewData(quiet, states, history()))
    assert shown == overview_view.Attention(Tone.BAD, sentence, "/devices/cam%2F1")
    assert "The own audits of 1 device show" in contracts_view.advice(promise, states)[0]
    assert contracts_view.advice(replace(promise, version="2"), states)[0].startswith("About 300")
    assert len(contracts_view.advice(replace(promise, state=AuditResult.HOLDS), states)) == 1

    counts = (ModelCounts("digits", 1), ModelCounts("digits", 2))
    device = replace(DEVICE, latest=Telemetry("s", 1, models=counts))
    alarmed = devices_view.broken(device, states)
    (model,) = devices_view.model_rows(device, alarmed)
    assert model["certified"] == Cell("no: alarm", tone=Tone.BAD)
    assert [row["alarm"].text for row in devices_view.answer_rows(device, alarmed)] == ["alarm", "none"]
    assert devices_view.broken(replace(device, name="cam/2"), states) == frozenset()

    many = replace(states, device_alarms=tuple(replace(lasting, device=f"cam/{number}") for number in range(7)))
    found = overview_view.attention(overview_view.OverviewData(quiet, many, history()))
    assert (len(found), found[-1].sentence) == (6, "2 further alarms of single devices.")


def test_telemetry_alone_shows_the_alarm_on_the_page_of_a_device() -> None:
    device = replace(DEVICE, latest=Telemetry("s", 1, models=(ModelCounts("digits", 1, alarm=True),)))
    assert devices_view.broken(device, ContractStates(())) == {"digits 1"}


def test_the_chart_of_the_evidence_has_the_level_of_the_alarm() -> None:
    drawn = contracts_view.chart(
        replace(PROMISE, evidence=(Evidence(0.0, 9, 0.5, 0.1), Evidence(3600.0, 20, 44.0, 0.1)))
    )
    (series,) = drawn["series"]
    assert series["data"] == [[0.0, 0.5], [3_600_000.0, 44.0]] and series["markLine"]["data"][0]["yAxis"] == 20
    assert drawn["yAxis"]["max"] == 100


def test_links_choose_presence_and_order() -> None:
    presences = {label: (href, chosen) for label, href, chosen in devices_view.presence_links(CHOSEN)}
    assert presences["All"] == ("/devices?selector=site%3Dberlin", True)
    assert presences["Late"] == ("/devices?selector=site%3Dberlin&presence=late", False)
    assert presences["Not accepted"][0].endswith("accepted=false")
    assert [chosen for _, _, chosen in devices_view.order_links(CHOSEN)] == [True, False]


def test_a_search_keeps_what_the_links_have_chosen() -> None:
    chosen = CHOSEN._replace(accepted=False, sort=Sort.LAST_SEEN)
    hidden = {name: value for name, value in devices_view.parameters(chosen).items() if value}
    assert hidden == {"selector": "site=berlin", "accepted": "false", "sort": "last_seen"}


def test_typed_tags() -> None:
    assert devices_view.tags_of("site=kiel, test-") == {"site": "kiel", "test": None}
    for words in ("", "site", "line=", "site=kiel *=1"):
        with pytest.raises(ConfigError, match="tag"):
            devices_view.tags_of(words)


def test_the_health_and_the_answers_of_a_device() -> None:
    counts = ModelCounts("digits", 1, rows=100, kept=80, escalated=19, errors=1, latency=(9, 1), latency_sum_ms=50.0)
    health = DeviceHealth(outbox_oldest_s=90.0, links_down=1, disk_free_share=0.02, hottest_c=71.4)
    latest = Telemetry("s", 1, 7200.0, (counts,), starts=3, unclean=1, outbox_items=4, health=health)
    device = replace(DEVICE, latest=latest, latest_age_s=240.0)
    cells = dict(devices_view.health(device))
    assert cells["Reported"] == Cell("4 min ago")
    late = dict(devices_view.health(replace(device, latest_age_s=7200.0)))
    assert late["Reported"] == Cell("2 h ago", tone=Tone.BUSY)
    assert cells["Corrections outstanding"] == Cell("4, the oldest for 1.5 min", tone=Tone.BUSY)
    assert cells["Links down"].tone is cells["Disk free"].tone is Tone.BAD and cells["Hottest sensor"].text == "71 °C"
    (row,) = devices_view.answer_rows(device, ())
    assert (row["kept"].text, row["latency"].text, row["alarm"].text) == ("80.0 %", "5 ms", "none")
    assert (
        devices_view.health(DEVICE) == [("Telemetry", Cell("none yet"))] and devices_view.answer_rows(DEVICE, ()) == []
    )


def test_the_audit_log_links_its_subjects() -> None:
    entry = Entry(7, 1.7e9, "application:ops", "device.tag", "device:cam/1", '{"tags": {"site": "kiel"}}', "0" * 64)
    listing = audit_page.entry_rows(AuditPage((entry,), 7), "", "device.")
    assert listing.following == "/audit?action=device.&before=7"
    assert listing.rows[0]["subject"].href == "/devices/cam%2F1" and "kiel" in listing.rows[0]["details"].text
    assert audit_page.entry_rows(AuditPage((entry,), None), "", "").following == ""


def test_formats() -> None:
    assert [duration(seconds) for seconds in (0, 90, 5400, 172_800, 172_800_000)] == [
        *("0 s", "1.5 min", "1.5 h", "2 d", "2,000 d")
    ]
    assert [number(value) for value in (None, 0.12345, 12345.0)] == ["-", "0.123", "12,345"]
    assert [moment(wall_s) for wall_s in (None, 0.0, 1e12)] == ["-", "1970-01-01 00:00:00", "9999-12-31 23:59:59"]
    assert address("/devices", selector="", model="a b") == "/devices?model=a+b"


@pytest.mark.parametrize(
    ("state", "tone"),
    [
        (twin.ProfilingState.SENT, Tone.BUSY),
        (twin.ProfilingState.MEASURING, Tone.BUSY),
        (twin.ProfilingState.DONE, Tone.GOOD),
        (twin.ProfilingState.REFUSED, Tone.BAD),
    ],
)
def test_only_a_fulfilled_request_has_the_good_tone(state: twin.ProfilingState, tone: Tone) -> None:
    request = ProfileRequest("cam", twin.DesiredProfile("digits", id="1"), state, done=2, total=8, message="It is hot.")
    (row,) = devices_view.request_rows([request])
    assert row["state"] == Cell(state.value, tone=tone)
    assert (row["bundle"].text, row["points"].text, row["why"].text) == ("digits", "2 of 8", "It is hot.")


def test_a_command_for_several_devices_says_how_many_are_done() -> None:
    done = list[str]()

    def accept(_: Fleet, name: str) -> None:
        if name == "c":
            raise LinkDownError("The gateway is away.")
        done.append(name)

    devices_view.do_each(None, ["a"], accept)
    with pytest.raises(RequestError, match=r"2 of 4 devices are done; c failed: The gateway is away\."):
        devices_view.do_each(None, ["a", "b", "c", "d"], accept)
    assert done == ["a", "a", "b"]
