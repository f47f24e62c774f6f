"""The alerting rules in Prometheus' own evaluator: each fault fires its alert in time, and a quiet week fires none."""

import json
import random
import re
import subprocess
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support import needs
from support.readme import places
from support.yaml_files import read_yaml

from firstline_core.errors import BY_CODE
from firstline_core.protocol.http import status_of
from firstline_core.telemetry.metrics import RequestMetrics

CHECKOUT = Path(__file__).parents[2]
RULES = CHECKOUT / "cloud_gateway" / "monitoring" / "rules.yml"
ALERTS = {rule["alert"]: rule for group in read_yaml(RULES)["groups"] for rule in group["rules"] if "alert" in rule}
MINUTES = 7 * 24 * 60
Values = Callable[[int], float]
"""The value of a series by minute."""
G = "firstline_gateway_"


def grows(per_minute: float) -> Values:
    return lambda minute: per_minute * minute


class Fault(NamedTuple):
    """What a fault does to one series while it lasts, and what is seen of it.

    Attributes:
        alert: that fires.
        series: that differs, and its value during the fault; of a counter, its growth.
        within: minutes in which the alert fires, as its runbook says.
        clears: minutes after the end of the fault in which it clears.
        begins: minute in which the fault begins.
    """

    alert: str
    series: str
    value: float
    within: int
    clears: int = 2
    begins: int = 20

    @property
    def until(self) -> int:
        """The minute in which it ends: later than a window of 5 minutes that looks for changes would notice."""
        return self.begins + self.within + 10


FAULTS = [
    Fault("FirstlineContractAlarm", f'{G}contract_alarm{{model="m",version="1"}}', 1, within=1),
    Fault("FirstlineDeviceContractAlarm", f'{G}contract_device_alarms{{model="m",version="1"}}', 2, within=1),
    Fault("FirstlineErrorBudgetFastBurn", f'{G}errors_total{{code="internal"}}', 200, within=10, clears=10, begins=75),
    Fault(
        "FirstlineErrorBudgetFastBurn",
        f'{G}fleet_answers_total{{outcome="errors"}}',
        900,
        within=10,
        clears=10,
        begins=75,
    ),
    Fault(
        "FirstlineErrorBudgetSlowBurn", f'{G}errors_total{{code="queue_full"}}', 8, within=300, clears=60, begins=420
    ),
    Fault("FirstlineOutboxOld", f"{G}fleet_outbox_oldest_seconds", 3700, within=11),
    Fault("FirstlineLinkDown", f'{G}fleet_problem_devices{{problem="link"}}', 31, within=16),
    Fault("FirstlineDevicesLate", f'{G}fleet_devices{{presence="late",group="all"}}', 160, within=16),
    Fault("FirstlineBrokerDisconnected", f"{G}fleet_mqtt_connected", 0, within=6),
    Fault("FirstlineBrokerDisconnected", f"{G}mqtt_connected", 0, within=6),
    Fault("FirstlineDeviceCertificateExpiry", f'{G}fleet_problem_devices{{problem="certificate"}}', 1, within=61),
    Fault("FirstlineMetadataExpiry", f'{G}expiry_timestamp_seconds{{role="targets"}}', 13 * 86_400, within=16),
    Fault("FirstlineMetadataExpiry", f'{G}expiry_timestamp_seconds{{role="snapshot"}}', 3600 * 5, within=16),
    Fault("FirstlineDiskFull", f'{G}fleet_problem_devices{{problem="disk"}}', 1, within=31),
    Fault("FirstlineHeat", f'{G}fleet_problem_devices{{problem="heat"}}', 31, within=31),
    Fault("FirstlineRolloutStuck", f'{G}rollouts{{state="paused"}}', 1, within=61),
    Fault("FirstlineRollbackStuck", f'{G}rollouts{{state="rolling_back"}}', 1, within=361),
    Fault("FirstlineGatewayDown", 'up{job="firstline-gateway"}', 0, within=3),
    Fault("FirstlineStoreDown", f"{G}store_up", 0, within=3),
    # A full disk on which small writes still succeed.
    Fault("FirstlineStoreDown", f'{G}deliveries_total{{result="refused"}}', 5, within=3),
    Fault(
        "FirstlineServerCertificateExpiry",
        f'{G}server_certificate_timestamp_seconds{{bound="end"}}',
        11 * 86_400,
        within=16,
    ),
    Fault("FirstlineWebhookFailing", f'{G}webhook_up{{webhook="ops"}}', 0, within=16),
]

WELL: Mapping[str, Values] = {
    'up{job="firstline-gateway"}': lambda _: 1,
    f"{G}store_up": lambda _: 1,
    f"{G}fleet_mqtt_connected": lambda _: 1,
    f"{G}mqtt_connected": lambda _: 1,
    f'{G}webhook_up{{webhook="ops"}}': lambda _: 1,
    f'{G}deliveries_total{{result="refused"}}': grows(0),
    f'{G}server_certificate_timestamp_seconds{{bound="begin"}}': lambda _: -60 * 86_400,
    f'{G}server_certificate_timestamp_seconds{{bound="end"}}': lambda _: 30 * 86_400,
    f'{G}requests_total{{tier="cloud",reason="policy",status="final"}}': grows(1000),
    f'{G}errors_total{{code="internal"}}': grows(0),
    f'{G}errors_total{{code="queue_full"}}': grows(0),
    f'{G}errors_total{{code="invalid_tensor"}}': grows(100),  # the callers' own
    f'{G}contract_alarm{{model="m",version="1"}}': lambda _: 0,
    f'{G}contract_device_alarms{{model="m",version="1"}}': lambda _: 0,
    f'{G}fleet_devices{{presence="online",group="all"}}': lambda _: 2990,
    f'{G}fleet_devices{{presence="late",group="all"}}': lambda _: 10,
    f'{G}fleet_devices{{presence="asleep",group="all"}}': lambda _: 200,
    **{
        f'{G}fleet_problem_devices{{problem="{each}"}}': lambda _: 0 for each in ("certificate", "disk", "heat", "link")
    },
    f"{G}fleet_outbox_oldest_seconds": lambda _: 30,
    f'{G}fleet_answers_total{{outcome="kept"}}': grows(6000),
    f'{G}fleet_answers_total{{outcome="errors"}}': grows(0),
    f'{G}expiry_timestamp_seconds{{role="targets"}}': lambda minute: 60 * minute + 80 * 86_400,
    f'{G}expiry_timestamp_seconds{{role="snapshot"}}': lambda minute: 60 * minute + 20 * 3600,
    **{f'{G}rollouts{{state="{each}"}}': lambda _: 0 for each in ("running", "paused", "rolling_back")},
}


def with_instance(series: str, instance: str) -> str:
    name, brace, labels = series.partition("{")
    return f'{name}{{instance="{instance}"{"," + labels if brace else "}"}'


def inputs(values: Mapping[str, Values], minutes: int, *, every: int = 1) -> list[dict[str, str]]:
    """Series of several replicas, which share a store; counters are those of one replica."""
    return [
        {
            "series": with_instance(name, f"g{instance}"),
            "values": " ".join(f"{value(minute):.10g}" for minute in range(0, minutes, every)),
        }
        for name, value in values.items()
        for instance in range(1 if "_total" in name else 2)
    ]


def broken(fault: Fault) -> dict[str, Values]:
    """The series of the fault: as usual, different while it lasts, and as usual again."""
    well = WELL[fault.series]

    def value(minute: int) -> float:
        if "_total" in fault.series:
            return well(minute) + fault.value * max(0, min(minute, fault.until) - fault.begins)
        if not fault.begins <= minute < fault.until:
            return well(minute)
        return 60 * minute + fault.value if "timestamp" in fault.series else fault.value

    return {**WELL, fault.series: value}


FIRING = 'ALERTS{alertstate="firing"}'


def promtool(*arguments: str, stdin: str = "") -> None:
    program = needs.program("promtool", "`make prometheus`")
    done = subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def evaluate(folder: Path, *tests: Mapping[str, Any], every: int = 1) -> None:
    file = folder / "test.json"  # which is YAML
    document = {"rule_files": [str(RULES)], "evaluation_interval": f"{every}m", "tests": tests}
    file.write_text(json.dumps(document))
    promtool("test", "rules", str(file))


def test_the_rules_are_valid() -> None:
    promtool("check", "rules", str(RULES))


def test_the_jobs_of_the_documentation_are_valid(tmp_path: Path) -> None:
    pages = [CHECKOUT / "docs" / "how-to" / "prometheus.md", RULES.with_name("prometheus.yml")]
    own, devices = re.findall(r"```yaml\n(.*?)```", pages[0].read_text(), re.DOTALL)
    shown = re.sub(r"^#  ?(?=[ -])", "  ", pages[1].read_text(), flags=re.MULTILINE)  # with the job in its comment
    for number, text in enumerate((own, devices, shown)):
        (tmp_path / f"{number}.yml").write_text(textwrap.dedent(text))
        promtool("check", "config", "--syntax-only", str(tmp_path / f"{number}.yml"))
    assert [job["job_name"] for job in yaml.safe_load(shown)["scrape_configs"]] == [
        "firstline-gateway",
        "firstline-edge",
    ]


def test_times_with_quantiles_pass_the_lint_of_promtool() -> None:
    metrics = RequestMetrics("edge")
    metrics.readings("link_seconds", "Times.", ("link", "quantile"), lambda: {("http", "0.5"): 0.25})
    promtool("check", "metrics", stdin=metrics.render()[0].decode())


def test_every_alert_has_a_severity_a_runbook_and_a_fault() -> None:
    assert {fault.alert for fault in FAULTS} == set(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        page, _, place = rule["annotations"]["runbook_url"].partition("#")
        text = (CHECKOUT / page).read_text()
        assert place in places(text), place
        (stated,) = re.findall(rf"\| \[{name}\]\(#\w+\) \| {rule['labels']['severity']} \| (\d+) min", text)
        assert int(stated) >= max(fault.within for fault in FAULTS if fault.alert == name)


def test_only_errors_of_the_gateway_use_up_its_budget() -> None:
    (pattern,) = set(re.findall(r'code!~"([^"]+)"', RULES.read_text()))
    for code, kind in BY_CODE.items():
        assert bool(re.fullmatch(pattern, code)) == (status_of(kind("x")) < 500), code


def test_the_rules_use_metrics_that_exist() -> None:
    documented = (CHECKOUT / "docs" / "reference" / "metrics.md").read_text()  # complete: `test_docs.py`
    used = set(re.findall(r"firstline_gateway_\w+", RULES.read_text()))
    assert used and {name for name in used if f"`{name}`" not in documented} == set()


@pytest.mark.parametrize(("slow", "every"), [(False, 1), (True, 4)])
def test_each_alert_fires_in_time_until_its_fault_ends(tmp_path: Path, slow: bool, every: int) -> None:
    """What takes hours to fire is looked at every four minutes."""
    tests = []
    for fault in (fault for fault in FAULTS if (fault.within >= 300) is slow):
        fires = {
            "expr": f'group by (alertname) (ALERTS{{alertname="{fault.alert}",alertstate="firing"}})',
            "exp_samples": [{"labels": f'{{alertname="{fault.alert}"}}', "value": 1}],
        }
        tests.append(
            {
                "name": f"{fault.alert} {fault.series}",
                "interval": f"{every}m",
                "input_series": inputs(broken(fault), fault.until + fault.clears + 5, every=every),
                "promql_expr_test": [
                    {"expr": FIRING, "eval_time": f"{fault.begins - every}m", "exp_samples": []},
                    fires | {"eval_time": f"{fault.begins + fault.within}m"},
                    fires | {"eval_time": f"{fault.until - every}m"},
                    {
                        "expr": f'ALERTS{{alertname="{fault.alert}",alertstate="firing"}}',
                        "eval_time": f"{fault.until + fault.clears}m",
                        "exp_samples": [],
                    },
                ],
            }
        )
    evaluate(tmp_path, *tests, every=every)


def test_an_alert_describes_what_happened(tmp_path: Path) -> None:
    rule = ALERTS["FirstlineLinkDown"]
    (fault,) = (fault for fault in FAULTS if fault.alert == "FirstlineLinkDown")
    expected = {
        "exp_labels": {"severity": "warning", "problem": "link"},
        "exp_annotations": {
            **rule["annotations"],
            "summary": "1.033% of the devices in service have a link that is down.",
        },
    }
    evaluate(
        tmp_path,
        {
            "interval": "1m",
            "input_series": inputs(broken(fault), 60),
            "alert_rule_test": [
                {"eval_time": f"{fault.until - 1}m", "alertname": fault.alert, "exp_alerts": [expected]}
            ],
        },
    )


def quiet_week(rng: random.Random) -> dict[str, Values]:
    """What 3,000 devices and two replicas do in a week without faults: nights, restarts, bursts, weak links."""
    late = [10 + 40 * (minute % 1440 < 300) + rng.randint(0, 30) for minute in range(MINUTES)]
    links = [rng.randint(0, 12) for _ in range(MINUTES)]
    hot = [rng.randint(0, 15) + 10 * (720 < minute % 1440 < 1020) for minute in range(MINUTES)]
    outbox = [rng.expovariate(1 / 300) for _ in range(MINUTES)]
    restarts = {rng.randrange(0, MINUTES, 4) for _ in range(7)}
    errors, failed, kept = [0.0], [0.0], [0.0]
    for minute in range(1, MINUTES):
        errors.append(errors[-1] + (200 if minute in restarts else rng.random() < 0.2))
        failed.append(failed[-1] + rng.randint(0, 2))
        kept.append(kept[-1] + 6000 + 3000 * (minute % 1440 > 480))
    return {
        **WELL,
        'up{job="firstline-gateway"}': lambda minute: float(minute not in restarts),
        f"{G}fleet_mqtt_connected": lambda minute: float(minute not in restarts and minute - 4 not in restarts),
        f'{G}fleet_devices{{presence="online",group="all"}}': lambda minute: 3000 - late[minute],
        f'{G}fleet_devices{{presence="late",group="all"}}': lambda minute: late[minute],
        f'{G}fleet_problem_devices{{problem="link"}}': lambda minute: links[minute],
        f'{G}fleet_problem_devices{{problem="heat"}}': lambda minute: hot[minute],
        f"{G}fleet_outbox_oldest_seconds": lambda minute: outbox[minute],
        f'{G}errors_total{{code="internal"}}': lambda minute: errors[minute],
        f'{G}fleet_answers_total{{outcome="kept"}}': lambda minute: kept[minute],
        f'{G}fleet_answers_total{{outcome="errors"}}': lambda minute: failed[minute],
        f'{G}expiry_timestamp_seconds{{role="snapshot"}}': lambda minute: 60 * (minute - minute % 720) + 86_400,
        f'{G}rollouts{{state="running"}}': lambda minute: float(minute % 4000 < 1500),
        f'{G}rollouts{{state="paused"}}': lambda minute: float(1500 <= minute % 4000 < 1545),
    }


def test_a_quiet_week_of_3000_devices_fires_nothing(tmp_path: Path) -> None:
    week = quiet_week(random.Random(1))
    fired = {"expr": f"count_over_time({FIRING}[7d])", "eval_time": f"{MINUTES - 4}m", "exp_samples": []}
    series = inputs(week, MINUTES, every=4)
    evaluate(tmp_path, {"interval": "4m", "input_series": series, "promql_expr_test": [fired]}, every=4)
