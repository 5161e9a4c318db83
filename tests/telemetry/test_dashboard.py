"""The Grafana dashboard: its panels fit the grid, and it can be imported with any Prometheus."""

from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.telemetry.scraped import DASHBOARD, FOLDER, PANELS, panels
from tests.tooling.pages import ROOT

COLUMNS = 24
ROWS = ["Now", "Attempts", "Queues", "Outbox and keys", "Processes"]
Place = dict[str, int]


def overlap(one: Place, other: Place) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def test_the_dashboard_has_its_rows_and_variables() -> None:
    assert [one["title"] for one in PANELS if one["type"] == "row"] == ROWS
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "job", "queue"]
    assert DASHBOARD["uid"] == "django-rmq-retry"
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD, "Grafana assigns the id at the import"


def test_panels_have_unique_ids_and_titles_and_do_not_overlap() -> None:
    places = [one["gridPos"] for one in PANELS]

    assert len({one["id"] for one in PANELS}) == len(PANELS)
    assert len({one["title"] for one in PANELS}) == len(PANELS)
    assert [pair for pair in combinations(places, 2) if overlap(*pair)] == []
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= COLUMNS for one in places)


@pytest.mark.parametrize("panel", panels(), ids=lambda one: one["title"])
def test_each_panel_has_a_unit_an_explanation_and_queries(panel: dict[str, Any]) -> None:
    targets = panel["targets"]

    assert panel["description"].endswith(".")
    assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"]
    assert len({one["refId"] for one in targets}) == len(targets) > 0
    assert {one["datasource"]["uid"] for one in (panel, *targets)} == {"${datasource}"}
    # Figures of database and broker are the same on each host: they are compared, never added.
    assert [one["expr"] for one in targets if "sum(rmq_retry_parked" in one["expr"]] == []


def test_grafana_is_provisioned_with_the_dashboard_and_its_data_source() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    mounted = dict(one.split(":")[:2] for one in compose["services"]["grafana"]["volumes"])
    inside = {target: ROOT / source for source, target in mounted.items()}
    datasources = yaml.safe_load((FOLDER / "grafana-datasources.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((FOLDER / "grafana-dashboards.yml").read_text())["providers"]
    folder = provider["options"]["path"]

    assert [one["type"] for one in datasources] == ["prometheus", "jaeger"]
    assert datasources[0]["isDefault"]
    assert inside["/etc/grafana/provisioning/datasources/all.yml"].name == "grafana-datasources.yml"
    assert inside["/etc/grafana/provisioning/dashboards/all.yml"].name == "grafana-dashboards.yml"
    assert inside[f"{folder}/dashboard.json"] == FOLDER / "dashboard.json"
    assert all(one.is_file() for one in inside.values())
