"""The handler that takes a message of a queue, and handlers that cannot share a queue."""

from dataclasses import replace
from typing import Any

import pytest

from django_rmq_retry import (
    Breaker,
    Broadcast,
    DeadLetter,
    Exchange,
    Fixed,
    InPlace,
    Ladder,
    Queue,
    Republish,
    RetryThenPark,
    StopTheLine,
)
from django_rmq_retry.errors import ConfigurationError, UndecodableHeaders
from django_rmq_retry.handlers import Match, Subscription, work_queues_of
from django_rmq_retry.messages import Headers
from django_rmq_retry.policies import Policy
from tests.handlers.factories import delivery, subscription

USUAL = RetryThenPark()
COPY = Broadcast("prices", bindings=[Exchange("prices", "fanout").bind()])


def handler(name: str, policy: Policy = USUAL, *, queue: Queue | str = "payments", **match: Any) -> Subscription:
    return subscription(policy, queue=queue, name=name, match=Match(**match))


def chosen(*handlers: Subscription, **arrival: Any) -> str | None:
    (work_queue,) = work_queues_of(handlers)
    taker = work_queue.choose(delivery(**arrival))
    return None if taker is None else taker.name


def contradiction(*handlers: Subscription) -> str:
    with pytest.raises(ConfigurationError) as caught:
        work_queues_of(handlers)
    return str(caught.value)


class TestMatch:
    def test_a_match_without_conditions_takes_everything(self) -> None:
        assert Match().takes(delivery(type="charge", headers={"a": 1}))
        assert Match().conditions == 0

    def test_a_match_compares_the_type_exactly(self) -> None:
        assert Match(type="charge").takes(delivery(type="charge"))
        assert not Match(type="charge").takes(delivery(type="Charge"))
        assert not Match(type="charge").takes(delivery())

    def test_a_match_takes_a_routing_key_pattern(self) -> None:
        assert Match(routing_key="pay.*").takes(delivery(routing_key="pay.cash"))
        assert Match(routing_key="pay.#").takes(delivery(routing_key="pay"))
        assert not Match(routing_key="pay.*").takes(delivery(routing_key="pay.cash.now"))

    def test_a_match_needs_every_named_header_with_its_value(self) -> None:
        match = Match(headers={"country": "NO", "version": 2})

        assert match.takes(delivery(headers={"country": "NO", "version": 2, "more": 1}))
        assert not match.takes(delivery(headers={"country": "NO"}))
        assert not match.takes(delivery(headers={"country": "NO", "version": "2"}))

    def test_a_match_needs_every_condition(self) -> None:
        match = Match(type="charge", routing_key="pay.*", headers={"version": 2})

        assert match.conditions == 3
        assert match.takes(delivery(type="charge", routing_key="pay.cash", headers={"version": 2}))
        assert not match.takes(delivery(type="refund", routing_key="pay.cash", headers={"version": 2}))

    def test_an_undecodable_header_in_a_match_raises(self) -> None:
        late = Headers(b"\x07version" + b"T\xff\xff\xff\xff\xff\xff\xff\xff")
        with pytest.raises(UndecodableHeaders, match="Header 'version' cannot be decoded"):
            Match(headers={"version": 2}).takes(delivery(headers=late))


class TestDispatch:
    def test_the_first_handler_that_takes_a_message_gets_it(self) -> None:
        two = handler("charge", type="charge"), handler("pay", routing_key="pay.#")

        assert chosen(*two, type="charge", routing_key="pay.cash") == "charge"
        assert chosen(*two, type="refund", routing_key="pay.cash") == "pay"

    def test_a_handler_without_conditions_is_asked_last(self) -> None:
        two = handler("rest"), handler("charge", type="charge")

        assert chosen(*two, type="charge") == "charge"
        assert chosen(*two, type="refund") == "rest"

    def test_a_message_that_matches_no_handler_gets_none(self) -> None:
        assert chosen(handler("charge", type="charge"), type="refund") is None

    def test_a_queue_with_one_unconditional_handler_does_not_dispatch(self) -> None:
        (alone,) = work_queues_of([handler("charge")])
        (picky,) = work_queues_of([handler("charge", type="charge")])
        (both,) = work_queues_of([handler("charge", type="charge"), handler("rest")])

        assert (alone.dispatches, picky.dispatches, both.dispatches) == (False, True, True)

    def test_queues_keep_the_order_of_their_first_handler(self) -> None:
        found = work_queues_of([handler("a", queue="q1"), handler("b", queue="q2"), handler("c", queue="q1", type="c")])

        assert [(work_queue.queue.name, [one.name for one in work_queue.subscriptions]) for work_queue in found] == [
            ("q1", ["c", "a"]),
            ("q2", ["b"]),
        ]

    def test_one_ordered_handler_makes_the_whole_queue_ordered(self) -> None:
        (work_queue,) = work_queues_of([handler("a", StopTheLine(), type="a"), handler("b", StopTheLine())])

        assert work_queue.ordered


class TestContradictions:
    def test_two_handlers_that_take_everything_are_refused(self) -> None:
        assert contradiction(handler("a"), handler("b")) == (
            "Queue 'payments': a and b would both take every message. "
            "Give all but one a condition: type=…, routing_key=… or headers={…}."
        )

    def test_two_handlers_with_equal_conditions_are_refused(self) -> None:
        two = handler("a", type="x", headers={"v": 1}), handler("b", headers={"v": 1}, type="x")

        assert contradiction(*two) == (
            "Handlers a and b take the same messages of queue 'payments', so the second would get none. "
            "Give them different conditions."
        )

    def test_two_handlers_with_different_queues_of_one_name_are_refused(self) -> None:
        said = contradiction(handler("a", type="a"), handler("b", queue=Queue("payments", max_length=5)))

        assert said.startswith("Handlers a and b share the queue 'payments' but not its queue arguments: Queue(name=")
        assert said.endswith(" Use the same for both, or use two queues.")

    def test_two_handlers_with_different_parked_queues_are_refused(self) -> None:
        other = subscription(USUAL, name="b", park="elsewhere")

        assert contradiction(handler("a", type="a"), other) == (
            "Handlers a and b share the queue 'payments' but not its parked queue: 'payments.parked' against "
            "'elsewhere'. Use the same for both, or use two queues."
        )

    def test_an_ordered_and_an_unordered_handler_are_refused(self) -> None:
        ordered = Queue("payments", single_active_consumer=True)
        said = contradiction(handler("a", StopTheLine(), queue=ordered, type="a"), handler("b", queue=ordered))

        assert "but not its order: True against False" in said

    def test_two_handlers_with_different_carriers_are_refused(self) -> None:
        said = contradiction(handler("a", type="a"), handler("b", RetryThenPark(via=Republish())))

        assert "but not its kind of carrier: 'Ladder' against 'Republish'" in said

    def test_two_ladders_with_different_steps_may_share_a_queue(self) -> None:
        work_queues_of(
            [handler("a", RetryThenPark(backoff=Fixed(5)), type="a"), handler("b", RetryThenPark(via=Ladder([60])))]
        )

    def test_a_handler_that_parks_into_its_own_queue_is_refused(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            subscription(USUAL, name="a", park="payments")

        assert str(caught.value) == "Handler a parks into its own queue 'payments'; name another one."


def test_a_dead_letter_loop_refuses_dropping_expired_messages() -> None:
    loop = RetryThenPark(via=DeadLetter(exchange="again", queue="again", after=5, back=""))

    with pytest.raises(ConfigurationError) as caught:
        subscription(loop, name="a", queue=Queue("payments", expired="drop"))

    assert str(caught.value) == (
        "Handler a: DeadLetter returns expired messages to their queue, so Queue(expired='drop') cannot drop them. "
        "Use via=Ladder(), or omit expired."
    )


@pytest.mark.parametrize(
    ("queue", "options", "said"),
    [
        (
            COPY,
            {"policy": RetryThenPark(via=Ladder([1, 2]))},
            (
                "Ladder sends retries back by the queue's name, and queue 'prices' may be deleted by then. Use "
                "via=InPlace(), which keeps the message unacked."
            ),
        ),
        (
            Queue("prices", type="classic", auto_delete=True),
            {"policy": RetryThenPark(via=Republish(), backoff=Fixed(1))},
            (
                "Republish sends retries back by the queue's name, and queue 'prices' may be deleted by then. Use "
                "via=InPlace(), which keeps the message unacked."
            ),
        ),
        (
            Queue("prices", type="classic", auto_delete=True),
            {"breaker": Breaker(on=OSError)},
            (
                "breaker=… stops consuming while it is open, and queue 'prices' with auto_delete=True would be deleted "
                "then. Use Broadcast, or exclusive=True."
            ),
        ),
        (
            Queue("prices", type="classic", auto_delete=True),
            {"policy": StopTheLine()},
            (
                "StopTheLine stops consuming in a long wait, and queue 'prices' with auto_delete=True would be deleted "
                "then. Use Broadcast, or exclusive=True."
            ),
        ),
        (
            COPY,
            {"order_by": len},
            "order_by keeps messages for queue 'prices', which is deleted with its consumer. Omit it.",
        ),
        (
            COPY,
            {"once": True},
            (
                "once=… lets one process handle a message, and Broadcast sends it to each. Omit once, or use a "
                "Queue that the processes share."
            ),
        ),
    ],
)
def test_a_transient_queue_refuses_policies_it_cannot_serve(queue: Queue, options: dict[str, Any], said: str) -> None:
    policy = options.pop("policy", RetryThenPark(via=InPlace()))
    fine = subscription(RetryThenPark(via=InPlace()), name="a", queue=queue)

    with pytest.raises(ConfigurationError) as caught:
        replace(fine, policy=policy, **options)

    assert str(caught.value) == f"Handler a: {said}"


class TestOrder:
    def test_a_quorum_queue_keeps_order_only_with_a_delivery_limit(self) -> None:
        with pytest.raises(
            ConfigurationError, match="Handler a keeps order, but queue 'payments' has delivery_limit=None"
        ):
            handler("a", StopTheLine(), queue=Queue("payments", delivery_limit=None))
        handler("a", StopTheLine(), queue=Queue("payments", type="classic", delivery_limit=None))


def test_an_unsuitable_carrier_is_refused_with_the_handlers_name() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Handler payments\.handlers\.charge: Queue 'payments' has a message_ttl"
    ):
        subscription(
            RetryThenPark(via=DeadLetter(exchange="retry", queue="wait", after=5)),
            queue=Queue("payments", message_ttl=60),
        )
