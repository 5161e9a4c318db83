"""Questions and answers over a real broker; the one who answers is played by the test."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.errors import CallUnanswered
from tests.amqp.answering import answering, ask, echo, reply
from tests.amqp.live import calling
from tests.tooling.waiting import longer

pytestmark = [pytest.mark.contract, pytest.mark.on_both]


def test_each_call_gets_its_own_answer_in_any_order(broker_url: str) -> None:
    kept: list[tuple[pika.BasicProperties, bytes]] = []

    def backwards(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        kept.append((properties, body))
        if len(kept) == 20:
            for known, asked in reversed(kept):
                reply(channel, known, b"re: " + asked)

    with answering(broker_url, backwards), calling(broker_url) as caller, ThreadPoolExecutor(20) as pool:
        asked = [str(number).encode() for number in range(20)]
        answers = list(pool.map(lambda body: ask(caller, body), asked))

    assert answers == [b"re: " + body for body in asked]


def test_a_late_answer_is_dropped_and_not_taken_for_the_next(broker_url: str) -> None:
    slow = threading.Event()

    def late(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        slow.wait(longer(5))
        echo(channel, properties, body)

    with answering(broker_url, late), calling(broker_url) as caller:
        with pytest.raises(CallUnanswered):
            ask(caller, b"first", timeout=0.2)
        slow.set()

        assert ask(caller, b"second") == b"re: second"


def test_unexpected_answers_disturb_no_call(broker_url: str) -> None:
    def babble(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        channel.basic_publish("", properties.reply_to or "", b"no id")
        channel.basic_publish("", properties.reply_to or "", b"", pika.BasicProperties(correlation_id="other"))
        echo(channel, properties, body)
        echo(channel, properties, body)

    with answering(broker_url, babble), calling(broker_url) as caller:
        assert ask(caller, b"a") == b"re: a"
        assert ask(caller, b"b") == b"re: b"


def test_a_caller_that_was_closed_opens_again_when_it_is_used(broker_url: str) -> None:
    with answering(broker_url), calling(broker_url) as caller:
        for _ in range(3):
            assert ask(caller, timeout=3) == b"re: ?"
            caller.close()
