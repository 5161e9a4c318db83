"""The end of each publish, on a connection without a socket: what the broker says is fed in as bytes."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import frame, spec

from django_rmq_retry import Message
from django_rmq_retry.amqp import PublishEnd, PublishResult
from django_rmq_retry.amqp.confirm_channel import NEVER, ConfirmChannel, PendingPublish
from django_rmq_retry.amqp.frames import RawProperties
from django_rmq_retry.messages import Headers, encode_properties
from tests.amqp.live import to
from tests.amqp.offline import Wire, method, wire

Ends = list[tuple[str, PublishEnd, str]]


class Confirms:
    """A confirm channel with number 2, opened, and how its publishes ended."""

    def __init__(self, at: Wire) -> None:
        self.at = at
        self.ends: Ends = []
        self.closed: list[ConfirmChannel] = []
        self.channel = ConfirmChannel(at.connection, closed=self.closed.append)
        self.feed(spec.Channel.OpenOk())
        self.feed(spec.Confirm.SelectOk())

    def feed(self, *methods: Any) -> None:
        for one in methods:
            self.at.feed(method(one, channel=2))

    def send(self, name: str, message: Message | None = None, *, deadline: float = 100.0) -> PendingPublish:
        made = message or to("q", message_id=name)
        pending = PendingPublish(
            made,
            encode_properties(made.properties),
            deadline=deadline,
            done=lambda result: self.ends.append((name, result.kind, result.text)),
        )
        self.channel.send(pending)
        return pending

    def give_back(self, message: Message, raw: bytes | None = None) -> None:
        back = RawProperties(encode_properties(message.properties) if raw is None else raw)
        returned = spec.Basic.Return(312, "NO_ROUTE", message.exchange, message.routing_key)
        frames: list[Any] = [frame.Method(2, returned), frame.Header(2, len(message.body), back)]
        frames.append(frame.Body(2, message.body))
        self.at.feed(b"".join(one.marshal() for one in frames))

    @property
    def outcomes(self) -> dict[str, PublishEnd]:
        found = {name: outcome for name, outcome, _ in self.ends}
        assert len(found) == len(self.ends), "a publish ended twice"
        return found


@pytest.fixture
def confirms() -> Iterator[Confirms]:
    with wire() as at:
        yield Confirms(at)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), max_size=12))
def test_any_mixture_of_single_and_multiple_answers_ends_every_publish_at_most_once(
    answers: list[tuple[int, bool, bool]],
) -> None:
    with wire() as at:
        confirms, expected = Confirms(at), dict[str, PublishEnd]()
        for number in range(1, 13):
            confirms.send(str(number))
        for tag, multiple, ack in answers:
            confirms.feed(spec.Basic.Ack(tag, multiple) if ack else spec.Basic.Nack(tag, multiple))
            for number in range(1, tag + 1) if multiple else [tag]:
                expected.setdefault(str(number), PublishEnd.CONFIRMED if ack else PublishEnd.NACKED)

        assert confirms.outcomes == expected


def test_a_returned_message_ends_as_returned_although_the_broker_acks_it(confirms: Confirms) -> None:
    confirms.send("kept")
    confirms.send("back")
    confirms.give_back(to("q", message_id="back"))
    confirms.feed(spec.Basic.Ack(2, True))

    assert confirms.ends == [("kept", PublishEnd.CONFIRMED, ""), ("back", PublishEnd.RETURNED, "312 NO_ROUTE")]


def test_a_return_is_matched_by_body_when_properties_are_equal(
    confirms: Confirms,
) -> None:
    first, second = to("q", b'{"n": 1}', message_id="same"), to("q", b'{"n": 2}', message_id="same")
    confirms.send("stored", first)
    confirms.send("returned", second)
    confirms.give_back(second)
    confirms.feed(spec.Basic.Ack(2), spec.Basic.Ack(1))

    assert confirms.outcomes == {"returned": PublishEnd.RETURNED, "stored": PublishEnd.CONFIRMED}


def test_a_return_is_never_attributed_to_an_optional_message(confirms: Confirms) -> None:
    confirms.send("optional", to("q", mandatory=False))
    confirms.send("mandatory", to("q"))
    confirms.give_back(to("q"))
    confirms.feed(spec.Basic.Ack(2, True))

    assert confirms.outcomes == {"optional": PublishEnd.CONFIRMED, "mandatory": PublishEnd.RETURNED}


def test_a_return_is_matched_even_after_the_broker_changed_its_headers(confirms: Confirms) -> None:
    sent = to("q", message_id="a", headers=Headers.of({"BCC": ["other"], "app": 1}))
    confirms.send("first", to("q", message_id="b"))
    confirms.send("changed", sent)
    confirms.give_back(to("q", message_id="a", headers=Headers.of({"app": 1})))
    confirms.feed(spec.Basic.Ack(2, True))

    assert confirms.outcomes == {"first": PublishEnd.CONFIRMED, "changed": PublishEnd.RETURNED}


def test_a_publish_past_its_deadline_is_unknown_and_ignores_a_late_confirm(confirms: Confirms) -> None:
    confirms.send("late", deadline=10)
    confirms.send("patient", deadline=20)
    confirms.channel.forget(10.0)
    confirms.feed(spec.Basic.Ack(2, True))

    assert confirms.ends == [("late", PublishEnd.UNKNOWN, "no confirm in time"), ("patient", PublishEnd.CONFIRMED, "")]


def test_a_publish_to_a_missing_exchange_ends_as_returned(confirms: Confirms) -> None:
    confirms.send("a", to("k", exchange="gone"))
    confirms.feed(spec.Channel.Close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'", 60, 40))

    assert confirms.ends == [("a", PublishEnd.RETURNED, "exchange 'gone' does not exist")]
    assert confirms.closed == [confirms.channel]


def test_publishes_in_flight_to_a_deleted_exchange_end_as_unknown(confirms: Confirms) -> None:
    """The exchange may have been deleted after it routed some of them."""
    for name in "ab":
        confirms.send(name, to("k", exchange="gone"))
    confirms.feed(spec.Channel.Close(404, "NOT_FOUND - no exchange 'gone' in vhost '/'", 60, 40))

    assert confirms.outcomes == {"a": PublishEnd.UNKNOWN, "b": PublishEnd.UNKNOWN}
    assert confirms.ends[0][2] == "exchange 'gone' does not exist"


def test_a_body_above_the_limit_is_too_large_and_others_in_flight_unknown(confirms: Confirms) -> None:
    confirms.send("small", to("q", b"x" * 5))
    confirms.send("big", to("q", b"x" * 50))
    confirms.feed(
        spec.Channel.Close(406, "PRECONDITION_FAILED - message size 50 is larger than configured max size 20", 60, 40)
    )

    assert confirms.outcomes == {"small": PublishEnd.UNKNOWN, "big": PublishEnd.TOO_LARGE}
    assert confirms.ends[1][2] == "50 bytes are above the broker's 20"


@pytest.mark.parametrize(
    "message",
    [
        to("q", headers=Headers.of({"big": "x" * 140_000})),
        to("k" * 256),
        to("\ud800"),
        Message(body="text", routing_key="q"),  # type: ignore[arg-type]  # a codec of the project's that is wrong
        Message(body=b"", routing_key=7),  # type: ignore[arg-type]  # a call that is wrong
    ],
    ids=["headers", "long key", "surrogate", "body", "key"],
)
def test_an_unwritable_message_ends_as_unsent_and_disturbs_no_other(confirms: Confirms, message: Message) -> None:
    confirms.send("good")
    confirms.send("bad", message)
    confirms.send("after")
    confirms.feed(spec.Basic.Ack(2, True))

    assert confirms.outcomes == {"bad": PublishEnd.UNSENT, "good": PublishEnd.CONFIRMED, "after": PublishEnd.CONFIRMED}


def confirm_all(confirms: Confirms) -> None:
    confirms.feed(spec.Basic.Ack(3, multiple=True))


def lose_all(confirms: Confirms) -> None:
    confirms.channel.lost(PublishResult(kind=PublishEnd.UNKNOWN))


def close_channel(confirms: Confirms) -> None:
    confirms.feed(spec.Channel.Close(404, "NOT_FOUND - no exchange 'x'", 60, 40))


def let_all_expire(confirms: Confirms) -> None:
    assert confirms.channel.forget(200.0) == NEVER


@pytest.mark.parametrize("end", [confirm_all, lose_all, close_channel, let_all_expire])
def test_a_failing_result_callback_withholds_no_other_result(
    confirms: Confirms, caplog: pytest.LogCaptureFixture, end: Callable[[Confirms], None]
) -> None:
    confirms.send("a")
    confirms.send("b").done = lambda _result: list[int]().remove(0)
    confirms.send("c")

    end(confirms)

    assert set(confirms.outcomes) == {"a", "c"}
    assert confirms.at.transport.failed is None
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert (getattr(record, "event", None), record.args) == ("result", ("q",))


def test_a_publish_that_waits_for_its_channel_ends_at_its_deadline() -> None:
    with wire() as at:
        ends: Ends = []
        channel = ConfirmChannel(at.connection, closed=lambda _: None)
        channel.send(
            PendingPublish(
                to("q"), b"\0\0", deadline=5, done=lambda result: ends.append(("a", result.kind, result.text))
            )
        )
        channel.forget(5.0)

        assert ends == [("a", PublishEnd.UNSENT, "the channel did not open in time")]
        assert channel.forget(5.0) == NEVER


LARGE = to("q", b"x" * 5000, message_id="large")
TOO_LARGE = "PRECONDITION_FAILED - message size 5000 is larger than configured max size 4500"


def test_a_larger_body_is_tested_on_another_channel_and_keeps_its_place(confirms: Confirms) -> None:
    confirms.send("before")
    confirms.send("large", LARGE)
    confirms.send("after")
    confirms.feed(spec.Basic.Ack(1))
    assert len(confirms.channel._sent) == 0

    confirms.at.feed(method(spec.Channel.OpenOk(), channel=3) + method(spec.Basic.QosOk(), channel=3))
    assert [pending.message for pending in confirms.channel._sent.values()] == [LARGE, to("q", message_id="after")]
    confirms.send("as large", LARGE)
    confirms.feed(spec.Basic.Ack(4, True))

    assert [name for name, _, _ in confirms.ends] == ["before", "large", "after", "as large"]
    assert set(confirms.outcomes.values()) == {PublishEnd.CONFIRMED}


def test_a_body_too_large_ends_before_it_is_sent_and_disturbs_no_other_publish(confirms: Confirms) -> None:
    confirms.send("before")
    confirms.send("large", LARGE)
    confirms.send("after")
    confirms.at.feed(method(spec.Channel.OpenOk(), channel=3))
    confirms.at.feed(method(spec.Channel.Close(406, TOO_LARGE, 60, 40), channel=3))
    confirms.send("again", LARGE)
    confirms.feed(spec.Basic.Ack(2, True))

    assert confirms.outcomes == {
        "large": PublishEnd.TOO_LARGE,
        "again": PublishEnd.TOO_LARGE,
        "before": PublishEnd.CONFIRMED,
        "after": PublishEnd.CONFIRMED,
    }
    assert confirms.ends[0][2] == "5000 bytes are above the broker's 4500"
    assert confirms.closed == []


def test_a_body_is_sent_when_its_size_test_is_inconclusive(confirms: Confirms) -> None:
    confirms.send("large", LARGE)
    confirms.at.feed(method(spec.Channel.OpenOk(), channel=3))
    confirms.at.feed(method(spec.Channel.Close(403, "ACCESS_REFUSED - no write access", 60, 40), channel=3))
    confirms.feed(spec.Basic.Ack(1))

    assert confirms.outcomes == {"large": PublishEnd.CONFIRMED}
