"""The metrics of a project's own registry, beside those of a consumer."""

import logging
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from prometheus_client import REGISTRY, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from django_rmq_retry.telemetry import prometheus
from django_rmq_retry.telemetry.probes import Instruments, Probes
from django_rmq_retry.telemetry.prometheus import FiguresCollector, text_of_default_registry


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Take out again what a test registers."""
    known = {*REGISTRY._collector_to_names}
    prometheus._logged.clear()
    yield
    for added in {*REGISTRY._collector_to_names} - known:
        REGISTRY.unregister(added)


class Failing(Collector):
    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        raise RuntimeError("the bank is away")


def test_a_consumer_does_not_show_its_figures_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = FiguresCollector()
    monkeypatch.setattr(figures._figures, "read", lambda: pytest.fail("database and broker are read for a scrape"))
    REGISTRY.register(figures)
    Gauge("bank_accounts", "Accounts.").set(7)

    assert "bank_accounts 7.0\n" in text_of_default_registry()


def test_a_failing_collector_of_the_project_is_logged_once_and_the_own_metrics_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    REGISTRY.register(Failing())
    probes = Probes(Instruments.of([], processes=1, version="1.2.3"), more=text_of_default_registry)
    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        answers = [probes.answer("/metrics") for _ in range(3)]

    assert [(one.status, 'version="1.2.3"' in one.body) for one in answers] == [(HTTPStatus.OK, True)] * 3
    assert caplog.messages == ["A collector of the project failed; /metrics shows the package's own metrics only"]
    assert "the bank is away" in caplog.text
