"""The figures of a database that does not answer."""

import threading
from contextlib import nullcontext

import pytest
from django.db import OperationalError

from django_rmq_retry.health import time_limit
from django_rmq_retry.telemetry import figures
from django_rmq_retry.telemetry.exposition import exposition_text
from django_rmq_retry.telemetry.figures import Figures, Notice
from django_rmq_retry.telemetry.meter import Board


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
