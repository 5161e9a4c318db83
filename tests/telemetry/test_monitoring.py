"""The monitoring files and the page on monitoring name only metrics and labels that a consumer prints."""

import re

import pytest

from tests.telemetry.scraped import ALERTS, Printed, queries, scraped, unknown_in
from tests.tooling.pages import page
from tests.tooling.promtool import no_promtool, wrong_queries
from tests.tooling.services import Unavailable, go_without

pytestmark = pytest.mark.slow

PAGE = page("metrics.md").read_text()
METRIC = re.compile(r"^- `(rmq_retry_\w+)` \((\w+)(.*?)\): [\w\[]", re.MULTILINE)
ALERTS_BY_SEVERITY = re.compile(r"^- `(critical|warning)` .*?(?=^- |^$)", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    """The metrics of a consumer and of a web process."""
    return scraped(tmp_path_factory.mktemp("scraped"))


def test_every_query_names_only_metrics_and_labels_that_exist(printed: Printed) -> None:
    unknown = {
        place: [*found]
        for place, texts in queries().items()
        for text in texts
        if (found := list(unknown_in(text, printed.consumer)))
    }

    assert unknown == {}


def test_the_page_lists_each_metric_with_its_type_and_labels(printed: Printed) -> None:
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in METRIC.findall(PAGE)}

    assert listed == {name: (one.kind, one.labels - {"le"}) for name, one in printed.consumer.items()}


def test_a_web_process_shows_the_same_figures(printed: Printed) -> None:
    figures = set(re.findall(r"^- `(rmq_retry_\w+)`", PAGE.partition("## Metrics of database")[2], re.MULTILINE))

    assert {name: one.labels for name, one in printed.web.items()} == {
        name: printed.consumer[name].labels for name in figures
    }


def test_every_metric_is_on_the_dashboard(printed: Printed) -> None:
    shown = "".join(text for place, texts in queries().items() if place.startswith("panel ") for text in texts)

    assert [name for name in printed.consumer if name not in shown] == []


def test_the_page_lists_each_alert_with_its_severity() -> None:
    lists = ALERTS_BY_SEVERITY.finditer(page("monitoring.md").read_text())
    listed = {name: found[1] for found in lists for name in re.findall(r"`(RmqRetry\w+)`", found[0])}

    assert listed == {one["alert"]: one["labels"]["severity"] for one in ALERTS}


def test_every_query_can_be_parsed() -> None:
    if lack := no_promtool():
        go_without(Unavailable(None, lack))

    assert wrong_queries([text for texts in queries().values() for text in texts]) == ""
    assert "parse error" in wrong_queries(["sum by (queue (up)"])
