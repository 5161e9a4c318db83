"""The figures of a stopped queue, and those of a database that does not answer."""

import threading
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from django_rmq_retry import RetryThenPark
from django_rmq_retry.handlers import work_queues_of
from django_rmq_retry.health import time_limit
from django_rmq_retry.models import QueueControl
from django_rmq_retry.telemetry import figures
from django_rmq_retry.telemetry.exposition import exposition_text
from django_rmq_retry.telemetry.figures import Figures, Notice
from django_rmq_retry.telemetry.meter import Board
from tests.handlers.factories import subscription


@pytest.mark.django_db
def test_a_database_that_does_not_answer_is_asked_once_and_leaves_the_figures_of_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    over = threading.Event()

    def silent() -> None:
        asked.append(threading.current_thread().name)
        over.wait(30)
        raise OperationalError

    monkeypatch.setattr(figures, "survey", silent)
    monkeypatch.setattr(figures, "_gauged", tuple)
    monkeypatch.setattr(figures, "FIGURES_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(time_limit, "alone_sees_its_data", lambda _alias: False)
    read = Figures(Notice(), Board(()), (), threads=1, with_connections=nullcontext).read
    try:
        texts = [exposition_text(read()) for _ in range(2)]
    finally:
        over.set()

    assert asked == ["rmq-survey"]
    assert ["rmq_retry_database_up 0\n" in text and "rmq_retry_broker_up 1\n" in text for text in texts] == [True, True]


@pytest.mark.django_db
@pytest.mark.parametrize(("minutes", "paused"), [(1, 1), (-1, 0)], ids=["lasting", "ended"])
def test_a_queue_counts_as_paused_until_its_pause_ends_though_its_breaker_is_open(
    minutes: int, paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    facts = {"since": now - timedelta(hours=1), "until": now + timedelta(minutes=minutes), "opened_at": now}
    QueueControl.objects.create(queue="payments", paused=True, opened=True, **facts)
    monkeypatch.setattr(figures, "_gauged", tuple)
    work_queues = work_queues_of([subscription(RetryThenPark())])
    text = exposition_text(Figures(Notice(), Board(()), work_queues, threads=1, with_connections=nullcontext).read())

    assert f'rmq_retry_queue_paused{{queue="payments"}} {paused}\n' in text
    assert 'rmq_retry_queue_breaker_open{queue="payments"} 1\n' in text
