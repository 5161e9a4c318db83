"""The Python client of Prometheus: its metrics beside ours, and our figures in a project's own registry."""

import time
from collections.abc import Iterable
from contextlib import nullcontext

from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry.handlers import registry
from django_rmq_retry.telemetry.exposition import PREFIX, Family
from django_rmq_retry.telemetry.figures import EVERY, Figures, Notice
from django_rmq_retry.telemetry.meter import Board

try:
    from prometheus_client import REGISTRY, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    INSTALLED, Base = False, object
else:
    INSTALLED, Base = True, Collector


def text_of_default_registry() -> str:
    """Return the metrics that the project's own code has registered; empty if prometheus-client is not installed."""
    return generate_latest(REGISTRY).decode() if INSTALLED else ""


class FiguresCollector(Base):  # type: ignore[misc, valid-type]  # the client may be missing
    """The figures of database and broker for the registry of a project's web process.

    Where several processes are scraped, register it in one of them, or take the highest value of each figure.
    """

    def __init__(self, *, threads: int = 4) -> None:
        if not INSTALLED:
            raise ImproperlyConfigured(
                "FiguresCollector requires prometheus-client: pip install 'django-rmq-retry[prometheus]'."
            )
        work_queues = registry.work_queues()
        # The connections of a web request are renewed by Django itself.
        self._figures = Figures(Notice(), Board(work_queues), work_queues, threads=threads, around=nullcontext)
        self._known: list[Metric] = []
        self._read_at = -EVERY

    def describe(self) -> Iterable["Metric"]:
        """Return no metrics, so that registering it reads nothing."""
        return ()

    def collect(self) -> Iterable["Metric"]:
        """Return the figures; they are read again after 15 seconds."""
        if time.monotonic() - self._read_at >= EVERY:
            self._known = [_metric(family) for family in self._figures.read()]
            self._read_at = time.monotonic()
        return self._known


def _metric(family: Family) -> "Metric":
    found = GaugeMetricFamily(PREFIX + family.name, family.about)
    for labels, value in family.samples:
        found.add_sample(found.name, dict(labels), value)
    return found
