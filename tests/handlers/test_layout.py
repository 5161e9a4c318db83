"""From handlers to a whole topology: each name once, each argument exactly, contradictions refused with a sentence."""

from typing import Any

import pytest

from django_rmq_retry import (
    DeadLetter,
    Exchange,
    Fixed,
    NackRequeue,
    Native,
    OneShot,
    Queue,
    RetryThenPark,
    Steps,
    StopTheLine,
)
from django_rmq_retry.errors import ConfigurationError, TopologyConflict
from django_rmq_retry.handlers import Match, Subscription, work_queues_of
from django_rmq_retry.handlers.layout import dead_letters_to_parked, layout, needed
from django_rmq_retry.policies import Policy
from django_rmq_retry.topology import BindingDeclaration, ExchangeDeclaration, Topology
from tests.handlers.factories import subscription

SHORT = RetryThenPark(attempts=3, backoff=Steps([5, 60]))
SAFE = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def laid_out(*subscriptions: Subscription, extra: Any = ()) -> Topology:
    return layout(work_queues_of(subscriptions), extra=extra)


def arguments(topology: Topology, queue: str) -> dict[str, object]:
    return dict(topology.queues[queue].arguments)


def test_one_handler_gets_work_waiting_quarantine_and_parked_queues() -> None:
    topology = laid_out(subscription(SHORT))

    assert {name: str(queue.role) for name, queue in topology.queues.items()} == {
        "payments": "work",
        "payments.retry.5s": "waiting",
        "payments.retry.1m": "waiting",
        "payments.quarantine": "quarantine",
        "payments.parked": "parked",
    }
    assert arguments(topology, "payments") == {
        **SAFE,
        "x-delivery-limit": 1_000_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments.parked",
    }
    assert arguments(topology, "payments.retry.5s") == {
        **SAFE,
        "x-delivery-limit": 1_000_000,
        "x-message-ttl": 5000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments",
    }
    assert arguments(topology, "payments.quarantine") == arguments(topology, "payments")
    assert arguments(topology, "payments.parked") == {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
    assert topology.exchanges == {}
    assert topology.bindings == ()


@pytest.mark.parametrize("policy", [SHORT, StopTheLine(), OneShot(), RetryThenPark(via=Native(5))], ids=repr)
def test_every_work_queue_dead_letters_to_its_parked_queue(policy: Policy) -> None:
    topology = laid_out(subscription(policy))

    assert arguments(topology, "payments")["x-dead-letter-routing-key"] == "payments.parked"
    assert topology.queues["payments.parked"].role == "parked"


@pytest.mark.parametrize("limit", [3, 20, 1_000_000])
def test_a_parked_queue_has_no_limits_of_its_work_queue(limit: int) -> None:
    topology = laid_out(
        subscription(SHORT, queue=Queue("payments", delivery_limit=limit, max_length=5, message_ttl=9)),
        subscription(SHORT, queue="other", park="payments.parked"),
    )

    assert arguments(topology, "payments")["x-delivery-limit"] == limit
    assert arguments(topology, "payments.parked") == {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}


def test_a_classic_work_queue_has_classic_queues_only() -> None:
    topology = laid_out(subscription(SHORT, queue=Queue("payments", type="classic")))

    assert {queue.arguments["x-queue-type"] for queue in topology.queues.values()} == {"classic"}
    assert arguments(topology, "payments.parked") == {"x-queue-type": "classic"}


def test_a_queue_without_a_type_is_declared_without_one() -> None:
    topology = laid_out(subscription(OneShot(), queue=Queue("payments", type=None)))

    assert arguments(topology, "payments") == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments.parked",
    }
    assert arguments(topology, "payments.parked") == {}


def test_explicit_arguments_win_and_none_removes_one() -> None:
    queue = Queue("payments", arguments={"x-queue-mode": "lazy", "x-delivery-limit": 7, "x-dead-letter-strategy": None})
    topology = laid_out(subscription(OneShot(), queue=queue))

    assert arguments(topology, "payments") == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 7,
        "x-queue-mode": "lazy",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "payments.parked",
    }


def test_an_ordered_queue_has_a_single_active_consumer() -> None:
    assert arguments(laid_out(subscription(StopTheLine())), "payments")["x-single-active-consumer"] is True


def test_bindings_and_the_exchanges_behind_them_are_declared_in_order() -> None:
    events = Exchange("events", "topic")
    country = Exchange("country", "headers", bindings=[events.bind("pay.#")])
    queue = Queue("payments", bindings=[country.bind(headers={"country": "NO"}), Exchange("").bind("payments")])
    topology = laid_out(subscription(OneShot(), queue=queue))

    assert list(topology.exchanges) == ["events", "country"]
    assert topology.bindings == (
        BindingDeclaration(source="events", destination="country", to_exchange=True, key="pay.#"),
        BindingDeclaration(source="country", destination="payments", arguments={"x-match": "all", "country": "NO"}),
    )
    assert [type(part).__name__ for part in topology] == [
        "ExchangeDeclaration",
        "ExchangeDeclaration",
        "QueueDeclaration",
        "QueueDeclaration",
        "QueueDeclaration",
        "BindingDeclaration",
        "BindingDeclaration",
    ]


def test_every_exchange_option_becomes_a_declaration() -> None:
    exchange = Exchange("e", "fanout", alternate="lost", internal=True, auto_delete=True, arguments={"x-a": 1})
    topology = laid_out(extra=[exchange])

    assert topology.exchanges == {
        "e": ExchangeDeclaration(
            name="e",
            type="fanout",
            durable=True,
            auto_delete=True,
            internal=True,
            arguments={"x-a": 1, "alternate-exchange": "lost"},
        )
    }


def test_handlers_on_one_queue_share_it_with_all_their_waiting_queues() -> None:
    topology = laid_out(
        subscription(RetryThenPark(attempts=2, backoff=Fixed(5)), name="a", match=Match(type="a")),
        subscription(RetryThenPark(attempts=2, backoff=Fixed(60)), name="b"),
    )

    assert list(topology.queues) == [
        "payments",
        "payments.retry.5s",
        "payments.retry.1m",
        "payments.quarantine",
        "payments.parked",
    ]


@pytest.mark.parametrize(
    "handled",
    [
        subscription(StopTheLine()),
        subscription(SHORT, queue=Queue("payments", type="classic")),
        subscription(RetryThenPark(via=Native(5))),
        subscription(RetryThenPark(attempts=2, via=NackRequeue())),
    ],
    ids=["a line", "a classic queue", "native", "requeue"],
)
def test_queues_that_cannot_quarantine_have_no_quarantine_queue(handled: Subscription) -> None:
    assert "payments.quarantine" not in laid_out(handled).queues


def test_an_exchange_shared_by_two_handlers_is_one() -> None:
    main = Exchange("main")
    topology = laid_out(
        subscription(OneShot(), queue=Queue("a", bindings=[main.bind("a")])),
        subscription(OneShot(), queue=Queue("b", bindings=[main.bind("b")])),
    )

    assert list(topology.exchanges) == ["main"]
    assert [(binding.key, binding.destination) for binding in topology.bindings] == [("a", "a"), ("b", "b")]


def test_an_exchange_written_in_two_ways_is_refused_with_the_difference() -> None:
    with pytest.raises(TopologyConflict) as caught:
        laid_out(
            subscription(OneShot(), queue=Queue("a", bindings=[Exchange("main", "direct").bind("a")])),
            subscription(OneShot(), queue=Queue("b", bindings=[Exchange("main", "topic", alternate="x").bind("b")])),
        )

    assert str(caught.value) == (
        "The exchange 'main' is defined twice with different arguments: type: 'direct' in one place, 'topic' in "
        "another; "
        "alternate-exchange: None in one place, 'x' in another. "
        "Define it once and use that object in both places."
    )
    assert caught.value.differences == {"type": ("direct", "topic"), "alternate-exchange": (None, "x")}


def test_a_queue_that_would_have_two_roles_is_refused() -> None:
    with pytest.raises(TopologyConflict, match=r"The queue 'b' is defined twice .*: role: ") as caught:
        laid_out(subscription(OneShot(), queue="a", park="b"), subscription(OneShot(), queue="b"))

    assert caught.value.differences["role"] == ("parked", "work")


def test_a_work_queue_named_like_a_waiting_queue_is_refused() -> None:
    with pytest.raises(TopologyConflict, match=r"The queue 'payments\.retry\.5s' is defined twice"):
        laid_out(subscription(SHORT), subscription(OneShot(), queue="payments.retry.5s"))


def test_carriers_that_ask_for_different_arguments_of_one_queue_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        laid_out(
            subscription(RetryThenPark(via=Native(5)), name="a", match=Match(type="a")),
            subscription(RetryThenPark(via=Native(7)), name="b"),
        )

    assert str(caught.value) == (
        "The handlers of queue 'payments' need x-delayed-retry-min=5000 and 7000. "
        "Give them the same carrier, or two queues."
    )


def test_extra_queues_and_exchanges_are_laid_out() -> None:
    answers = Queue("answers", type="classic", bindings=[Exchange("main").bind("answer")])
    topology = laid_out(extra=[answers, Exchange("audit", "fanout")])

    assert topology.queues["answers"].role == "other"
    assert arguments(topology, "answers") == {"x-queue-type": "classic"}
    assert list(topology.exchanges) == ["main", "audit"]


def test_the_default_exchange_is_never_declared() -> None:
    assert laid_out(extra=[Exchange("")]).exchanges == {}


def test_a_consumer_needs_every_queue_and_exchange_it_publishes_to() -> None:
    payments = Exchange("payments", "topic")
    work = Queue("payments.charge", bindings=[payments.bind("charge.#")])
    charge = subscription(RetryThenPark(attempts=3, backoff=Steps([10, 60])), queue=work)
    loop = DeadLetter(exchange="retry-exchange", queue="retry-queue", after=30)
    cash = subscription(RetryThenPark(attempts=4, via=loop), queue=Queue("cash", type="classic"), park="parking-queue")

    assert [(type(one).__name__, one.name) for one in needed(work_queues_of([charge, cash]))] == [
        ("ExchangeDeclaration", "retry-exchange"),
        ("QueueDeclaration", "payments.charge"),
        ("QueueDeclaration", "payments.charge.parked"),
        ("QueueDeclaration", "payments.charge.quarantine"),
        ("QueueDeclaration", "payments.charge.retry.10s"),
        ("QueueDeclaration", "payments.charge.retry.1m"),
        ("QueueDeclaration", "cash"),
        ("QueueDeclaration", "parking-queue"),
        ("QueueDeclaration", "retry-queue"),
    ]


def test_what_others_declare_is_needed_as_external() -> None:
    loop = DeadLetter(exchange="retry-exchange", queue="retry-queue", after=30)
    theirs = subscription(RetryThenPark(attempts=4, via=loop), queue=Queue("theirs", existing=True))
    found = needed(work_queues_of([theirs]), extra=[Exchange("retry-exchange", existing=True)])

    assert {one.name for one in found if one.existing} == {"theirs", "retry-exchange"}


@pytest.mark.parametrize(
    ("queue", "policy", "so"),
    [
        (Queue("q"), RetryThenPark(), True),
        (Queue("q"), RetryThenPark(via=DeadLetter(exchange="retry", queue="retry", after=1)), False),
        (Queue("q", existing=True), RetryThenPark(), False),
        (Queue("q", arguments={"x-dead-letter-exchange": None}), RetryThenPark(), False),
        (Queue("q", arguments={"x-dead-letter-routing-key": "other"}), RetryThenPark(), False),
    ],
    ids=["ours", "loop", "another client's", "nowhere", "elsewhere"],
)
def test_only_a_queue_dead_lettering_to_the_parked_queue_parks_rejects(queue: Queue, policy: Policy, so: bool) -> None:
    (work_queue,) = work_queues_of([subscription(policy, queue=queue)])

    assert dead_letters_to_parked(work_queue) is so
