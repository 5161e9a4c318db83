"""The decorator: a plain function stays one, and what cannot be a handler is refused where it is written."""
# ruff: noqa: ARG001 - a handler gets a message whether it needs it or not

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import override_settings

import django_rmq_retry
from django_rmq_retry import (
    Broadcast,
    DeadLetter,
    Delivery,
    Exchange,
    Fixed,
    InPlace,
    Json,
    Message,
    NackRequeue,
    Native,
    OneShot,
    Queue,
    Raw,
    RetryThenPark,
    StopTheLine,
    handler,
)
from django_rmq_retry.amqp import CONFIRMED, Done
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import Match, registry
from tests.tooling.connections import publishing_by

pytestmark = pytest.mark.usefixtures("no_handlers")


def test_a_decorated_handler_is_still_a_plain_function() -> None:
    @handler("payments.charge")
    def charge(message: Delivery) -> str:
        """Charge it."""
        return message.queue

    assert charge(Delivery(queue="q", body=b"")) == "q"

    assert (charge.__name__, charge.__doc__, charge.__module__) == ("charge", "Charge it.", __name__)
    assert repr(charge) == f"<Handler {charge.name}>"


def test_omitted_options_get_defaults() -> None:
    @handler("payments.charge", name="charge")
    def charge(message: Delivery) -> None: ...

    found = charge.subscription

    assert found.name == "charge"
    assert charge.queue == Queue("payments.charge")
    assert found.park == "payments.charge.parked"
    assert found.policy == RetryThenPark()
    assert found.match == Match()
    assert isinstance(found.codec, Json)


def test_the_default_name_is_the_dotted_path_of_the_function() -> None:
    @handler("payments.charge")
    def charge(message: Delivery) -> None: ...

    assert charge.name == f"{__name__}.test_the_default_name_is_the_dotted_path_of_the_function.<locals>.charge"


def test_every_option_can_be_given() -> None:
    codec = Raw()
    policy = RetryThenPark(attempts=2, backoff=Fixed(3))

    def keys(message: Delivery) -> str:
        return message.queue

    def fingerprint(message: Delivery, error: BaseException) -> str:
        return message.queue

    @handler(
        Queue("payments.charge", type="classic"),
        policy=policy,
        park="set-aside",
        type="charge",
        routing_key="bank.*",
        headers={"kind": 1},
        codec=codec,
        keys=keys,
        fingerprint=fingerprint,
        name="charge",
    )
    def charge(message: Delivery) -> None: ...

    found = charge.subscription

    assert found.queue == Queue("payments.charge", type="classic")
    assert (found.policy, found.park, found.codec) == (policy, "set-aside", codec)
    assert (found.keys, found.fingerprint) == (keys, fingerprint)
    assert found.match == Match(type="charge", routing_key="bank.*", headers={"kind": 1})


def test_the_settings_define_the_default_policy_and_queue_type() -> None:
    @handler("payments.charge")
    def charge(message: Delivery) -> None: ...

    policy = RetryThenPark(attempts=1)
    before = charge.subscription
    with override_settings(RMQ_RETRY={"POLICY": policy, "QUEUE_TYPE": "classic"}):
        changed = charge.subscription

    assert (changed.policy, changed.queue.type) == (policy, "classic")
    assert (before.queue.type, charge.subscription.queue.type) == ("quorum", "quorum")


def test_the_queries_of_an_async_handler_run_in_its_worker() -> None:
    together = asyncio.Barrier(3)

    @handler("payments.charge")
    async def charge(message: Delivery) -> int:
        await together.wait()
        return await sync_to_async(threading.get_ident)()

    run = charge.subscription.run
    seen: dict[int, object] = {}

    def work() -> None:
        seen[threading.get_ident()] = run(Delivery(queue="q", body=b""))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10)

    assert len(seen) == 3
    assert all(thread == told for thread, told in seen.items())


def test_an_error_of_an_async_handler_reaches_the_worker() -> None:
    @handler("payments.charge")
    async def charge(message: Delivery) -> None:
        raise LookupError("no such payment")

    with pytest.raises(LookupError, match="no such payment"):
        charge.subscription.run(Delivery(queue="q", body=b""))


def test_an_async_handler_called_directly_is_awaited_by_the_caller() -> None:
    @handler("payments.charge")
    async def charge(message: Delivery) -> str:
        return "done"

    waiting = charge(Delivery(queue="q", body=b""))

    with pytest.raises(StopIteration, match="done"):
        waiting.send(None)


def test_an_inner_decorator_may_hide_that_a_function_is_async() -> None:
    def counted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(function)
        def call(message: Any) -> Any:
            return function(message)

        return call

    @handler("payments.charge")
    @counted
    async def charge(message: Delivery) -> str:
        return "done"

    assert charge.subscription.run(Delivery(queue="q", body=b"")) == "done"


def test_one_function_may_serve_two_queues_under_two_names() -> None:
    @handler("payments.transfer", name="transfer")
    @handler("payments.charge", name="charge")
    def both(message: Delivery) -> str:
        return "done"

    assert [found.queue.name for found in registry.subscriptions()] == ["payments.charge", "payments.transfer"]
    assert both.queue.name == "payments.transfer"
    assert both(Delivery(queue="q", body=b"")) == "done"


def takes_none() -> None: ...
def takes_two(message: object, other: object) -> None: ...
def takes_by_name(*, message: object) -> None: ...
def takes_one_and_defaults(message: object, other: int = 1) -> None: ...
def generates(message: object) -> Iterator[int]:
    yield 1


async def generates_async(message: object) -> Any:
    yield 1


def nested() -> Any:
    def takes_two(message: object, other: object) -> None: ...

    return takes_two


class Bank:
    def charge(self, message: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (takes_none, r"takes_none\(\) must take one argument, the message, and no other. Write it like this:"),
        (takes_two, r"takes_two\(message, other\) must take one argument"),
        (takes_by_name, "must take one argument, the message, and no other. Write it like this:"),
        (nested(), "must take one argument, the message, and no other. Write it like this:"),
        (Bank.charge, "A method cannot be a handler; write a function"),
        (generates, "Handler generates contains 'yield'"),
        (generates_async, "Handler generates_async contains 'yield'"),
        (Bank, "decorates a function, not Bank"),
        (functools.partial(takes_two, 1), "decorates a function, not functools.partial"),
        ("charge", "decorates a function, not 'charge'"),
    ],
)
def test_an_invalid_handler_function_is_refused_at_its_definition(function: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        handler("payments.charge")(function)

    assert registry.subscriptions() == ()


def test_arguments_with_defaults_are_allowed() -> None:
    assert handler("payments.charge")(takes_one_and_defaults).queue.name == "payments.charge"


def test_the_decorator_requires_a_queue() -> None:
    with pytest.raises(ConfigurationError, match="@handler needs the name of a queue"):
        handler(takes_one_and_defaults)  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.parametrize(
    ("queue", "options", "said"),
    [
        ("", {}, "must be a string that is not empty"),
        (None, {}, "must be a string that is not empty"),
        ("amq.mine", {}, "reserved for the broker"),
        ("q", {"policy": RetryThenPark}, "policy is a value such as RetryThenPark"),
        ("q", {"policy": "RetryThenPark"}, "policy is a value such as RetryThenPark"),
        ("q", {"keys": "payment"}, "keys is a function, such as lambda message: …, not 'payment'"),
        ("q", {"fingerprint": 7}, "fingerprint is a function, such as"),
        ("q", {"ack": "never"}, "ack is 'manual' or 'auto', not 'never'"),
        ("q", {"ack": "auto", "policy": RetryThenPark()}, "no message is retried, counted or parked. Omit policy"),
        ("q", {"ack": "auto", "park": "p"}, "Omit park"),
        ("q", {"ack": "auto", "once": True}, "Omit once"),
        ("q", {"ack": "auto", "order_by": len}, "Omit order_by"),
        ("q", {"ack": "auto", "rate": 5}, "Omit rate"),
        (Queue("q", type="classic", auto_delete=True), {"ack": "auto"}, "would be deleted then. Use Broadcast"),
        ("q", {"timeout": 0}, "timeout takes seconds above 0 and up to ten years, not 0"),
        ("q", {"timeout": "15"}, "timeout takes seconds above 0 and up to ten years, not '15'"),
        ("q", {"park": "q"}, "parks into its own queue"),
        ("q", {"park": "amq.parked"}, "reserved for the broker"),
        ("q", {"policy": RetryThenPark(via=NackRequeue(), attempts=5)}, "cannot count to attempts=5"),
        (Queue("q", type="classic"), {"policy": RetryThenPark(via=Native(1))}, "feature of quorum queues"),
        (
            Queue("q", message_ttl=5),
            {"policy": RetryThenPark(via=DeadLetter(exchange="retry", queue="retry", after=30))},
            "dead-letter loop",
        ),
    ],
)
def test_invalid_options_are_refused_at_the_definition(queue: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        handler(queue, **options)(takes_one_and_defaults)

    assert registry.registrations() == {}


def test_the_documented_handler_examples_can_be_defined() -> None:
    main = Exchange("main-exchange", "direct")

    @handler("ledger.post", policy=StopTheLine())
    def post(message: Delivery) -> None: ...

    @handler("rates.quote", policy=OneShot())
    def quote(message: Delivery) -> dict[str, str]:
        return {"rate": "1.0831"}

    @handler(
        Queue("main-queue", bindings=[main.bind("srvc.transact.cash")]),
        policy=RetryThenPark(attempts=4, via=DeadLetter(exchange="retry-exchange", queue="retry-queue", after=30)),
        park="parking-queue",
    )
    def cash(message: Delivery) -> None: ...

    assert list(registry.topology().queues) == [
        "ledger.post",
        "ledger.post.parked",
        "rates.quote",
        "rates.quote.quarantine",
        "rates.quote.parked",
        "main-queue",
        "retry-queue",
        "parking-queue",
    ]


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in django_rmq_retry.__all__ if not hasattr(django_rmq_retry, name)] == []


class Taken:
    """A publisher that remembers what it is given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        self.messages.append(message)

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        self.messages.append(message)
        done(CONFIRMED)


@pytest.fixture
def taken() -> Iterator[Taken]:
    publisher = Taken()
    with publishing_by(publisher):
        yield publisher


def test_a_message_published_to_a_handler_reaches_its_queue_with_its_type(taken: Taken) -> None:
    @handler("payments", type="charge", headers={"bank": "a"}, codec=Raw())
    def charge(message: Delivery) -> None: ...

    name = charge.publish(b"7", priority=3, message_id="m1", headers={"trace": "t"}, immediate=True)

    (message,) = taken.messages
    assert name == "m1"
    assert (message.exchange, message.routing_key, message.body, message.mandatory) == ("", "payments", b"7", True)
    assert (message.properties.type, message.properties.priority, message.properties.delivery_mode) == ("charge", 3, 2)
    assert dict(message.headers) == {"bank": "a", "trace": "t"}


def test_a_call_uses_the_handlers_queue_and_returns_the_answer() -> None:
    asked: list[tuple[object, ...]] = []

    class Caller:
        def __init__(self, *, exclusive: bool) -> None:
            asked.append((exclusive,))

        def call(self, message: Message, *, timeout: float) -> Delivery:
            asked.append((message.routing_key, message.properties.type, timeout))
            return Delivery(queue="answers", body=b'{"rate":"1.0831"}')

    @handler("rates.quote", policy=OneShot())
    def quote(message: Delivery) -> None: ...

    with publishing_by(None, Caller):
        assert quote.call({"pair": "EURUSD"}, timeout=2, type="spot") == {"rate": "1.0831"}
        assert asyncio.run(quote.acall({"pair": "EURUSD"}, timeout=3)) == {"rate": "1.0831"}
    assert asked == [(False,), ("rates.quote", "spot", 2), (False,), ("rates.quote", None, 3)]


def test_a_queue_per_process_is_published_to_only_by_its_exchange(taken: Taken) -> None:
    prices = Exchange("prices", "topic")

    @handler(Broadcast("prices.cache", bindings=[prices.bind("eur.#")]), name="remember")
    def remember(message: Delivery) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        remember.publish({"rate": "1.08"})
    remember.publish({"rate": "1.08"}, exchange="prices", routing_key="eur.usd")

    assert str(caught.value) == (
        "Handler remember has one queue for each process, with a name given by the broker. Publish to its "
        "exchange: publish(…, exchange='prices', routing_key=…)."
    )
    assert [(message.exchange, message.routing_key) for message in taken.messages] == [("prices", "eur.usd")]


def test_a_transient_queue_without_a_carrier_keeps_retries_unacked() -> None:
    prices = Exchange("prices", "topic")

    @handler(Broadcast("prices.cache", bindings=[prices.bind("#")]), policy=RetryThenPark(attempts=3))
    def remember(message: Delivery) -> None: ...

    assert remember.subscription.policy == RetryThenPark(attempts=3, via=InPlace())
