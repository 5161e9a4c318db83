"""The Python client of Prometheus: its metrics beside ours, and our figures in a project's own registry."""

import logging
import time
from collections.abc import Iterable
from contextlib import nullcontext
from contextvars import ContextVar

from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry.handlers import registry
from django_rmq_retry.telemetry.exposition import PREFIX, Family
from django_rmq_retry.telemetry.figures import READ_EVERY_SECONDS, Figures, Notice
from django_rmq_retry.telemetry.meter import Board

try:
    from prometheus_client import REGISTRY, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    INSTALLED, Base = False, object
else:
    INSTALLED, Base = True, Collector


log = logging.getLogger("django_rmq_retry")

_beside_own: ContextVar[bool] = ContextVar("_beside_own", default=False)
"""True while the registry is read for a consumer's ``--http``, which shows the figures of FiguresCollector itself."""

_logged: set[str] = set()
"""The kinds of exceptions that are logged since the last scrape without one: the next may fail in the same way."""


def text_of_default_registry() -> str:
    """Return the metrics that the project's own code has registered.

    It is empty if prometheus-client is not installed, or if a collector of the project fails.
    """
    if not INSTALLED:
        return ""
    token = _beside_own.set(True)
    try:
        text = generate_latest(REGISTRY).decode()
    except Exception as error:
        # The metrics of this package do not depend on the project's collectors.
        kind = type(error).__qualname__
        if kind not in _logged:
            _logged.add(kind)
            log.exception("A collector of the project failed; /metrics shows the package's own metrics only")
        return ""
    else:
        _logged.clear()
        return text
    finally:
        _beside_own.reset(token)


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
        self._figures = Figures(
            Notice(), Board(work_queues), work_queues, threads=threads, with_connections=nullcontext
        )
        self._known: list[Metric] = []
        self._read_at = -READ_EVERY_SECONDS

    def describe(self) -> Iterable["Metric"]:
        """Return no metrics, so that registering it reads nothing."""
        return ()

    def collect(self) -> Iterable["Metric"]:
        """Return the figures; they are read again after 15 seconds."""
        if _beside_own.get():
            return ()
        if time.monotonic() - self._read_at >= READ_EVERY_SECONDS:
            self._known = [_metric(family) for family in self._figures.read()]
            self._read_at = time.monotonic()
        return self._known


def _metric(family: Family) -> "Metric":
    found = GaugeMetricFamily(PREFIX + family.name, family.about)
    for labels, value in family.samples:
        found.add_sample(found.name, dict(labels), value)
    return found
