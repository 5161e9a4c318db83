"""Publishing from Django: what leaves, when, and what is refused where it is written."""

import asyncio
import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from django.db import transaction
from django.utils import timezone

from django_rmq_retry import (
    Delivery,
    Fixed,
    Message,
    OneShot,
    Raw,
    RetryThenPark,
    apublish,
    handler,
    publish,
    publish_many,
)
from django_rmq_retry.amqp import CONFIRMED, Done
from django_rmq_retry.errors import (
    ConfigurationError,
    HeadersTooLarge,
    MessageReturned,
    MessageUnsent,
    NotDelayable,
    UnencodableData,
)
from django_rmq_retry.handlers.handler import destination_of
from django_rmq_retry.messages import Headers, Properties
from django_rmq_retry.publishing import publish as publishing
from django_rmq_retry.publishing.options import PublishOptions, options_of
from django_rmq_retry.publishing.publish import adispatch, dispatch, message_of
from django_rmq_retry.testing import isolated_handlers
from django_rmq_retry.testing import message_of as kit_message_of
from tests.handlers.factories import subscription
from tests.tooling.connections import publishing_by
from tests.tooling.results import RETURNED


class Post:
    """A publisher that keeps what it is given; keys in `bad` are returned."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.bad: set[str] = set()

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        self.sent.append(message)
        if message.routing_key in self.bad:
            raise RETURNED.error(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        for message in messages:
            self.publish(message, timeout=timeout)
        return len(self.sent)

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        self.sent.append(message)
        done(RETURNED if message.routing_key in self.bad else CONFIRMED)

    def close(self) -> None:
        raise NotImplementedError

    @property
    def keys(self) -> list[str]:
        return [message.routing_key for message in self.sent]


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    with publishing_by(made):
        yield made


@pytest.mark.usefixtures("transactional_db")
def test_outside_a_transaction_a_message_is_sent_at_once(post: Post) -> None:
    name = publish({"a": 1}, routing_key="q")

    assert [message.properties.message_id for message in post.sent] == [name]
    assert post.sent[0].body == b'{"a":1}'
    assert post.sent[0].properties.delivery_mode == 2
    assert post.sent[0].mandatory


REPLY_ADDRESS = "amq.rabbitmq.reply-to.g1h2AA5yZXBseUAxAAACBQAAAABjA1Ll.a2V5"


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize(
    ("key", "headers"),
    [(REPLY_ADDRESS, {}), ("q", {"CC": ["other", REPLY_ADDRESS]}), ("q", {"BCC": [REPLY_ADDRESS]})],
    ids=["key", "CC", "BCC"],
)
def test_a_direct_reply_to_address_is_refused_before_sending(post: Post, key: str, headers: dict[str, object]) -> None:
    refused = pytest.raises(ConfigurationError, match="Return the answer from the handler")
    with refused:
        publish(1, routing_key=key, headers=headers)
    with refused:
        asyncio.run(apublish(1, routing_key=key, headers=headers))
    with refused, transaction.atomic():
        publish(1, routing_key=key, headers=headers)
    with refused, transaction.atomic():
        publish_many([Message(body=b"1", routing_key=key, properties=Properties(headers=Headers.of(headers)))])
    publish(1, exchange="main", routing_key=key, headers=headers)

    assert [message.exchange for message in post.sent] == ["main"]


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("timeout", [0, -1, math.nan, "2"])
def test_an_invalid_timeout_is_refused_before_sending_or_committing(post: Post, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout=… takes seconds above 0"), transaction.atomic():
        publish(1, routing_key="q", timeout=timeout)
    with pytest.raises(ConfigurationError, match="timeout=… takes seconds above 0"):
        publish_many([message_of(1, routing_key="q")], timeout=timeout)
    with pytest.raises(ConfigurationError, match="timeout=… takes seconds above 0"):
        asyncio.run(apublish(1, routing_key="q", timeout=timeout))

    assert post.sent == []


@pytest.mark.usefixtures("transactional_db")
class TestTransactions:
    def test_a_message_can_be_sent_immediately_inside_a_transaction(self, post: Post) -> None:
        with transaction.atomic():
            publish(1, routing_key="q", immediate=True)
            transaction.set_rollback(True)

        assert post.keys == ["q"]

    def test_a_message_that_fails_after_the_commit_is_logged_and_stops_no_other(
        self, post: Post, caplog: pytest.LogCaptureFixture
    ) -> None:
        post.bad.add("bad")
        with transaction.atomic():
            publish(1, routing_key="first", outbox=False)
            name = publish(1, routing_key="bad", outbox=False)
            publish(1, routing_key="last", outbox=False)

        assert post.keys == ["first", "bad", "last"]
        (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
        assert record.message_id == name  # type: ignore[attr-defined]  # from extra
        assert "The transaction was committed, but message" in record.getMessage()

    def test_a_batch_is_sent_on_commit(self, post: Post) -> None:
        with transaction.atomic():
            assert publish_many(message_of(number, routing_key="q") for number in range(3)) == 3
            assert post.keys == []

        assert post.keys == ["q", "q", "q"]

    def test_a_rollback_discards_a_batch(self, post: Post) -> None:
        with transaction.atomic():
            publish_many([message_of(1, routing_key="q")])
            publish_many([message_of(1, routing_key="urgent")], immediate=True)
            transaction.set_rollback(True)

        assert post.keys == ["urgent"]

    def test_failed_messages_of_a_batch_are_logged_after_the_commit(
        self, post: Post, caplog: pytest.LogCaptureFixture
    ) -> None:
        post.bad.add("bad")
        messages = [message_of(1, routing_key=key) for key in ("first", "bad")]
        with transaction.atomic():
            publish_many(messages, outbox=False)
            publish(1, routing_key="last", outbox=False)

        assert post.keys == ["first", "bad", "last"]
        (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
        assert record.message_ids == [one.properties.message_id for one in messages]  # type: ignore[attr-defined]  # from extra

    @pytest.mark.parametrize("error", [RuntimeError("x"), OSError("y"), ValueError("z")])
    def test_any_failure_after_the_commit_is_logged_with_the_message_id(
        self, post: Post, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        def fail(_message: Message, **_: object) -> None:
            raise error

        monkeypatch.setattr(post, "publish", fail)
        with transaction.atomic():
            name = publish(1, routing_key="q", outbox=False)

        assert name in caplog.text
        assert "The transaction was committed, but message" in caplog.text

    @pytest.mark.parametrize(
        "options",
        [
            {"priority": 300},
            {"message_id": "x" * 256},
            {"type": "x" * 256},
            {"routing_key": "k" * 256},
            {"headers": {"big": "x" * 140_000}},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_an_unencodable_message_fails_before_the_commit(self, post: Post, options: dict[str, Any]) -> None:
        with pytest.raises((ValueError, HeadersTooLarge, MessageUnsent)), transaction.atomic():
            publish(1, **{"routing_key": "q", **options})

        assert post.keys == []


@pytest.mark.parametrize("name", ["rmq-retry-attempts", "rmq-retry-new", "x-death", "x-delivery-count"])
def test_reserved_headers_cannot_be_set_by_a_publisher(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        message_of(1, options=PublishOptions(headers={name: 1}))


def test_a_publisher_may_delay_a_message_by_the_plugins_header() -> None:
    assert message_of(1, options=PublishOptions(headers={"x-delay": 5000})).properties.headers["x-delay"] == 5000


@pytest.mark.parametrize(
    "options",
    [
        {"expiration": -1},
        {"expiration": float("nan")},
        {"expiration": 1e12},
        {"reply_to": "amq.rabbitmq.reply-to"},
        {"headers": {"CC": "one"}},
        {"headers": {"BCC": [7]}},
    ],
    ids=str,
)
def test_options_that_would_close_a_shared_channel_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        message_of(1, options=options_of(options))


def test_cc_headers_may_name_other_queues() -> None:
    assert message_of(1, options=PublishOptions(headers={"CC": ["a", "b"]})).headers["CC"] == ["a", "b"]


def test_an_option_that_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="has no option prio"):
        publish(1, routing_key="q", prio=3)


def given_to(function: Callable[..., object]) -> set[str]:
    """The names that a function takes by keyword."""
    return {one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY}


def called(function: Callable[..., Any]) -> None:
    answer = function({}, delya=5)
    if inspect.iscoroutine(answer):
        asyncio.run(answer)


def test_the_refusal_of_an_unknown_option_lists_all_options() -> None:
    with isolated_handlers():

        @handler("payments")
        def charge(message: Delivery) -> None:
            """Nothing."""

        exact: list[tuple[Callable[..., object], set[str]]] = [
            (publish, given_to(publish)),
            (apublish, given_to(apublish)),
            (charge.publish, given_to(charge.publish) | given_to(charge.message)),
            (charge.apublish, given_to(charge.apublish) | given_to(charge.message)),
            (charge.call, given_to(charge.call)),
            (charge.acall, given_to(charge.acall)),
            (charge.message, given_to(charge.message)),
            (kit_message_of, given_to(kit_message_of)),
        ]
        for function, own in exact:
            with pytest.raises(TypeError) as caught:
                called(function)

            said = re.fullmatch(r"(\w+)\(\) has no option delya\. Its options are (.+)\.", str(caught.value))
            assert said is not None, caught.value
            assert said[1] == function.__name__
            assert set(said[2].split(", ")) == own | set(PublishOptions.__dataclass_fields__)


def test_unencodable_data_is_refused_at_the_call() -> None:
    with pytest.raises(UnencodableData):
        message_of(object())
    with pytest.raises(UnencodableData):
        message_of({"not": "bytes"}, codec=Raw())


@pytest.mark.parametrize(
    ("delay", "key", "expiration"),
    [(30, "payments.retry.30s", None), (5, "payments.retry.30s", "5000"), (90, "payments.retry.30s", None)],
)
def test_a_delay_uses_the_waiting_queues(delay: float, key: str, expiration: str | None) -> None:
    handler = subscription(RetryThenPark(attempts=3, backoff=Fixed(30)))
    message = message_of(1, options=PublishOptions(delay=delay), destination=destination_of(handler))

    assert (message.exchange, message.routing_key) == ("", key)
    assert message.properties.expiration == expiration
    assert message.headers.get("rmq-retry-wait") == (60_000 if delay == 90 else None)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5"])
def test_an_invalid_delay_is_refused(delay: Any) -> None:
    with pytest.raises(ConfigurationError):
        message_of(1, options=PublishOptions(delay=delay), destination=destination_of(subscription(RetryThenPark())))


def delayed(**options: Any) -> Message:
    return message_of(
        1,
        options=PublishOptions(**options),
        destination=destination_of(subscription(RetryThenPark(attempts=3, backoff=Fixed(30)))),
    )


def test_a_delay_may_be_a_timedelta() -> None:
    assert delayed(delay=timedelta(seconds=5)).properties.expiration == "5000"
    assert delayed(delay=timedelta(0)).routing_key == "payments"


def test_a_message_may_wait_until_a_time() -> None:
    message = delayed(at=timezone.now() + timedelta(seconds=20))

    assert message.routing_key == "payments.retry.30s"
    assert 0 < int(message.properties.expiration or 0) <= 20_000


def test_a_time_that_is_past_delays_nothing() -> None:
    message = delayed(at=timezone.now() - timedelta(seconds=1))

    assert (message.routing_key, message.properties.expiration) == ("payments", None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - what is refused
            "timezone.now() + timedelta(hours=1), not datetime.datetime(2030, 1, 1, 0, 0). For a span of time use",
        ),
        ({"at": 60}, "not 60. For a span of time use delay=…."),
        ({"at": timedelta(hours=1)}, "For a span of time use delay=…."),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "at=… takes a time within the next ten years"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}, "Pass delay=… or at=…, not both."),
        (
            {"delay": timedelta(days=-1)},
            "delay=… takes seconds from 0 to ten years, or a timedelta such as timedelta(minutes=10), not ",
        ),
    ],
)
def test_a_wrong_time_or_delay_is_refused_in_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        delayed(**options)

    assert said in str(refused.value)


def test_a_message_to_a_handler_that_answers_calls_cannot_be_delayed() -> None:
    with pytest.raises(NotDelayable, match="Ladder"):
        message_of(1, options=PublishOptions(delay=5), destination=destination_of(subscription(OneShot())))


def test_a_delay_requires_a_handler_and_excludes_an_expiration() -> None:
    with pytest.raises(ConfigurationError):
        message_of(1, options=PublishOptions(delay=5))
    with pytest.raises(ConfigurationError):
        message_of(
            1, options=PublishOptions(delay=5, expiration=5), destination=destination_of(subscription(RetryThenPark()))
        )


def test_an_awaited_publish_returns_after_the_confirm(post: Post) -> None:
    name = asyncio.run(apublish({"a": 1}, routing_key="q"))

    assert post.sent[0].properties.message_id == name


def test_an_awaited_publish_raises_its_failure(post: Post) -> None:
    post.bad.add("q")
    with pytest.raises(MessageReturned):
        asyncio.run(apublish(1, routing_key="q"))


def test_a_cancelled_wait_does_not_affect_other_publishes(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Done] = []
    monkeypatch.setattr(post, "send", lambda _message, done, **_: late.append(done))

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(adispatch(message_of(1, routing_key="q")), 0.01)
        late[0](CONFIRMED)

    asyncio.run(impatient())
    late[0](CONFIRMED)


@pytest.mark.usefixtures("own_database")
def test_a_publish_waits_for_a_transaction_of_another_database(post: Post) -> None:
    with transaction.atomic(using="own"):
        publish(1, routing_key="lost")
        publish_many([message_of(1, routing_key="lost")])
        transaction.set_rollback(True, using="own")
    with transaction.atomic(using="own"):
        publish(1, routing_key="kept")
        assert post.keys == []

    assert post.keys == ["kept"]


@pytest.mark.usefixtures("own_database")
def test_a_publish_waits_for_the_default_database_first(post: Post) -> None:
    with transaction.atomic():
        with transaction.atomic(using="own"):
            publish(1, routing_key="q")
        assert post.keys == []

    assert post.keys == ["q"]


@pytest.mark.usefixtures("transactional_db")
def test_a_batch_is_sent_at_once_outside_a_transaction(post: Post) -> None:
    assert publishing.publish_many([message_of(1, routing_key="q"), message_of(2, routing_key="q")]) == 2
    assert post.keys == ["q", "q"]


@pytest.mark.usefixtures("transactional_db", "post")
def test_a_given_message_id_is_kept() -> None:
    assert dispatch(message_of(1, routing_key="q", options=PublishOptions(message_id="mine"))) == "mine"


def test_a_message_without_a_given_id_has_a_random_uuid() -> None:
    ids = [UUID(message_of(1, routing_key="q").properties.message_id) for _ in range(1000)]

    assert len(set(ids)) == len(ids)
    assert {(one.version, one.variant) for one in ids} == {(4, RFC_4122)}
