"""What pages say while the broker is away: a sentence for people, whatever the socket did."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry import markup
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.run_state import waits_for_broker
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.management.broker_status import BrokerStatus, heads
from django_rmq_retry.models import ConsumerProcess, RequeueRun
from tests.admin import made
from tests.admin.conftest import operating
from tests.admin.looking import Page
from tests.admin.test_rights import ADDRESSES, world
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("connected")]
PYTHON = re.compile(r"\w+(?:Error|Exception|Timeout)\b|\(['\"]|',\)|Errno|\bNone\b|Traceback")


def reset(accepted: socket.socket) -> None:
    accepted.recv(8)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def close(accepted: socket.socket) -> None:
    accepted.recv(8)


def chatter(accepted: socket.socket) -> None:
    accepted.recv(8)
    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def refuse_the_version(accepted: socket.socket) -> None:
    accepted.recv(8)
    accepted.sendall(b"AMQP\x00\x01\x00\x00")


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                with accepted:
                    answer(accepted)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer", [reset, close, chatter, refuse_the_version])
def test_a_broker_that_cannot_be_used_is_described_without_the_words_of_python(
    answer: Callable[[socket.socket], None], page: Client, settings: Any
) -> None:
    with listening(answer) as port:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "URL": url, "CONNECT_TIMEOUT": 2}
        broker_look.forget()
        said = wait_until(lambda: broker_look.look().unreachable)
        found, status = (Page(page.get(f"/admin/rmq_retry/{name}/")).text for name in ("errorgroup", "livestatus"))

    assert f"127.0.0.1:{port}" in said
    assert said in found
    assert said in status
    assert "1 thing needs you" in status
    assert PYTHON.findall(said) == []


def test_the_banner_says_since_when_no_consumer_reaches_the_broker(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said when a page had asked in vain first, ten minutes after the outage had begun."""
    now = timezone.now()
    lost = [now - timedelta(minutes=11), now - timedelta(minutes=10)]
    rows = [made.consumer(connected=False, lost_at=at, pid=pid) for pid, at in enumerate(lost)]
    made.broker_seen(monkeypatch, away="connection refused", last=broker_look.Look(at=now - timedelta(minutes=30)))
    run, told = RequeueRun(pk=1, rate=20), [_banners(page)]
    waits = waits_for_broker(run, broker_look.look())
    rows[0].connected, rows[0].lost_at = True, None
    rows[0].save()
    told.append(_banners(page))
    ConsumerProcess.objects.update(connected=False, lost_at=None)
    told.append(_banners(page))
    made.broker_seen(monkeypatch, away="connection refused")
    told.append(_banners(page))
    why, last = (
        "(The broker at amqp://rabbit cannot be reached: connection refused)",
        clock(now - timedelta(minutes=30)),
    )

    assert waits
    assert told == [
        {f"No connection to the broker since {clock(lost[0])} {why}"},
        {f"No connection to the broker {why}; its last answer here was at {last}"},
        {f"No connection to the broker {why}; its last answer here was at {last}"},
        {f"No connection to the broker {why}"},
    ]


def test_every_page_says_that_the_broker_is_away_and_says_it_once(
    page: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operating(settings, EDITABLE={"*": True})
    made.broker_seen(monkeypatch, away="connection refused")
    known = world()
    told: dict[str, int] = {}
    for address in ADDRESSES:
        if address.method == "get":
            answer = address.asked_by(page, known)
            text = "" if answer.streaming else answer.content.decode()
            told |= {f"{address} {address.of}": text.count("No connection to the broker (")} if "<body" in text else {}

    assert {name: count for name, count in told.items() if count != 1} == {}
    assert len(told) > 30


def test_the_first_page_after_the_broker_is_back_is_true(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "No connection" for a minute: the process had looked once, during the outage."""
    away = iter([True, False])

    def asked(_known: object) -> broker_look.Look:
        if next(away):
            raise OSError("connection refused")
        return broker_look.Look(at=timezone.now())

    monkeypatch.setattr(broker_look, "_ask_broker", asked)
    monkeypatch.setattr(broker_look, "FRESH_LOOK_SECONDS", 0.0)
    told = [Page(page.get("/admin/rmq_retry/errorgroup/")).text for _ in range(2)]

    assert ["connection refused" in one for one in told] == [True, False]


def test_what_the_broker_has_not_told_is_no_number(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server that was started during an outage showed "Waiting until due 0", and no queues "as of" now."""
    made.broker_seen(monkeypatch, away="connection refused")
    text = Page(page.get("/admin/rmq_retry/livestatus/")).text

    assert f"Waiting until due {markup.NOTHING} " in text
    assert "The queues are not known yet" in text
    assert "shown as of" not in text
    assert "checked" not in text
    assert f"payments.main transfer Ready {markup.NOTHING} " in text


def test_status_doctor_and_alerts_know_the_same_time_of_an_outage() -> None:
    lost = timezone.now() - timedelta(minutes=11)
    made.consumer(connected=False, lost_at=lost)
    away = Problem(code=Code.BROKER_AWAY, values={"address": "amqp://rabbit", "reason": "refused"})
    health = Health(survey=survey(), away=away)

    assert {one.code: one.since for one in health.needs} == {Code.BROKER_AWAY: lost, Code.DISCONNECTED: lost}
    assert heads(BrokerStatus.of(health), terminal=False)[0][2].startswith("no connection since ")


def _banners(page: Client) -> set[str]:
    names = ("livestatus", "errorgroup", "queuecontrol")
    texts = (Page(page.get(f"/admin/rmq_retry/{name}/")).text for name in names)
    return {
        found[0].strip() if (found := re.findall(r"No connection to the broker[^.]*", text)) else "" for text in texts
    }


def clock(at: datetime) -> str:
    return re.sub("<[^>]*>", "", markup.time_exact(at))
