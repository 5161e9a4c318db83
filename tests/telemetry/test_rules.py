"""The alert rules: promtool accepts them, their unit tests pass, and each links to a section that exists."""

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from django_rmq_retry.conf import Settings
from django_rmq_retry.health.rules import (
    HALTED_TOO_LONG,
    NEARLY_FULL,
    OUTBOX_OVERDUE_AFTER,
    PARKED_TOO_LONG,
    PAUSED_TOO_LONG,
)
from tests.telemetry.scraped import ALERTS, FOLDER, KEDA
from tests.tooling.pages import DOCS
from tests.tooling.promtool import no_promtool, promtool
from tests.tooling.services import Unavailable, go_without

SITE = "https://django-rmq-retry.readthedocs.io/en/latest/"
TESTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.test.yml").read_text())["tests"]
CHECKS = [check for one in TESTS for check in one["alert_rule_test"]]


@pytest.fixture
def _promtool() -> None:
    if lack := no_promtool():
        go_without(Unavailable(None, lack))


@pytest.mark.usefixtures("_promtool")
def test_the_alert_rules_pass_their_unit_tests() -> None:
    assert promtool("test", "rules", FOLDER / "alerts.test.yml") == ""


@pytest.mark.usefixtures("_promtool")
def test_prometheus_accepts_its_configuration() -> None:
    assert promtool("check", "config", FOLDER / "prometheus.yml") == ""


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    assert {one["alert"] for one in ALERTS} == {check["alertname"] for check in CHECKS if check["exp_alerts"]}


def test_the_alerts_have_the_thresholds_of_doctor_and_admin() -> None:
    rules = {one["alert"]: f"{one['expr']} for {one.get('for')}" for one in ALERTS}
    limit = {one.name: one.default for one in fields(Settings)}["blocked_total"]
    hours, minutes = timedelta(hours=1), timedelta(minutes=1)

    assert f"> {OUTBOX_OVERDUE_AFTER.total_seconds():g} " in rules["RmqRetryOutboxOld"]
    assert f"> {NEARLY_FULL} * {limit} " in rules["RmqRetryBlockedNearLimit"]
    assert f"> {PARKED_TOO_LONG / hours:g} * 3600" in rules["RmqRetryMessageParkedTooLong"]
    assert f" for {PAUSED_TOO_LONG / hours:g}h" in rules["RmqRetryQueuePaused"]
    assert f" for {HALTED_TOO_LONG / minutes:g}m" in rules["RmqRetryQueueHalted"]


def test_each_alert_has_a_summary_and_a_severity() -> None:
    assert {one["labels"]["severity"] for one in ALERTS} == {"critical", "warning"}
    assert all(re.fullmatch(r"[A-Z{].+\.", one["annotations"]["summary"]) for one in ALERTS)
    assert len({one["alert"] for one in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda one: one["alert"])
def test_each_alert_links_to_a_section_that_exists(alert: dict[str, Any]) -> None:
    address, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    text = (DOCS / address.removeprefix(SITE).replace(".html", ".md")).read_text()
    headings = re.findall(r"^#{2,4} (.+)$", text, re.MULTILINE)

    assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_autoscaling_example_has_the_fields_that_keda_requires() -> None:
    spec = KEDA["spec"]
    [trigger] = spec["triggers"]

    assert (KEDA["apiVersion"], KEDA["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert spec["scaleTargetRef"]["name"]
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    assert trigger["type"] == "prometheus"
    # KEDA reads the values of metadata as strings.
    assert {type(value) for value in trigger["metadata"].values()} == {str}
    assert trigger["metadata"].keys() >= {"serverAddress", "query", "threshold"}
    assert float(trigger["metadata"]["threshold"]) == 1


@pytest.mark.usefixtures("_promtool")
def test_the_autoscaling_query_is_the_sum_of_the_lowest_figure_of_each_queue(tmp_path: Path) -> None:
    def series(instance: str, queue: str, value: int) -> dict[str, str]:
        labels = f'job="bank-consumer", instance="{instance}", queue="{queue}"'
        return {"series": f"rmq_retry_wanted_consumers{{{labels}}}", "values": f"{value}x5"}

    [trigger] = KEDA["spec"]["triggers"]
    given = [("a", "payments.charge", 3), ("b", "payments.charge", 9), ("a", "cash", 1), ("a", "ledger.post", 7)]
    test = {
        "interval": "1m",
        "input_series": [series(*one) for one in given],
        "promql_expr_test": [
            {"expr": trigger["metadata"]["query"], "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": 4}]}
        ],
    }
    path = tmp_path / "keda.test.yml"
    path.write_text(yaml.safe_dump({"tests": [test]}))

    assert promtool("test", "rules", path) == ""
