"""The broker's own loops: attempts read from x-death, and no message that loses its way back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import DeadLetter, Exchange, Message, Queue, RetryThenPark, WaitQueue
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Headers, Instruction, Settlement
from django_rmq_retry.policies import Carrier, retry
from tests.handlers.factories import arrived, delivery, hop, settled, subscription, topology_of

MAIN = Exchange("main", "direct")
PAYMENTS = Queue("payments", bindings=[MAIN.bind("pay.cash")])
LOOP = DeadLetter(exchange="retry", queue="payments.wait", after=30)


def looping(via: Carrier = LOOP, queue: Queue = PAYMENTS) -> Subscription:
    return subscription(RetryThenPark(attempts=4, via=via), queue=queue)


def death(queue: str = "payments", reason: object = "rejected", count: object = 1, **more: Any) -> dict[str, object]:
    return {"queue": queue, "reason": reason, "count": count, "exchange": "main", "routing-keys": ["pay.cash"], **more}


def attempt_of(*deaths: object, **headers: object) -> int:
    one = delivery(headers={"x-death": list(deaths), **headers})
    return LOOP.attempt(looping().route, one)


def retried(via: Carrier = LOOP, queue: Queue = PAYMENTS, **arrival: Any) -> Settlement:
    """Return the settlement of a failed delivery; by default one from the main exchange."""
    one = delivery(**{"exchange": "main", "routing_key": "pay.cash", **arrival})
    return settled(retry(30), one, looping(via, queue))


def copied(settlement: Settlement) -> Message:
    assert settlement.instruction is Instruction.ACK
    assert settlement.copy is not None
    assert settlement.copy.mandatory
    return settlement.copy


def test_a_fresh_message_is_at_its_first_attempt() -> None:
    assert LOOP.attempt(looping().route, delivery()) == 1


def test_each_rejection_of_this_queue_is_an_attempt() -> None:
    assert attempt_of(death("payments.wait", "expired", 3), death(count=3)) == 4


def test_rejections_elsewhere_and_other_deaths_count_no_attempt() -> None:
    assert attempt_of(death("ledger", count=9), death(reason="expired", count=7), death(reason="maxlen", count=5)) == 1


def test_attempts_in_the_header_are_added_to_the_rejections() -> None:
    assert attempt_of(death(count=2), **{"rmq-retry-attempts": 3, "rmq-retry-queue": "payments"}) == 6


@pytest.mark.parametrize(
    "forged",
    [
        [1, 2],
        "hello",
        7,
        {},
        [{}],
        [death(count="99")],
        [death(count=-99)],
        [death(count=True)],
        [death(), death(reason=5)],
        [death(), None],
        [[death()]],
        b"x",
    ],
)
def test_a_forged_x_death_counts_no_attempt_and_is_removed(forged: object) -> None:
    one = delivery(exchange="main", routing_key="pay.cash", headers={"x-death": forged, "own": 1})
    copy = copied(settled(retry(30), one, looping()))

    assert LOOP.attempt(looping().route, one) == 1
    assert (copy.exchange, copy.routing_key) == ("retry", "pay.cash")
    assert "x-death" not in copy.headers
    assert copy.headers["own"] == 1
    assert copy.headers["rmq-retry-attempts"] == 1


def test_an_undecodable_x_death_counts_no_attempt_and_is_removed() -> None:
    late = Headers(b"\x07x-death" + b"A\0\0\0\x09T\xff\xff\xff\xff\xff\xff\xff\xff")
    one = delivery(exchange="main", routing_key="pay.cash", headers=late)

    assert LOOP.attempt(looping().route, one) == 1
    assert "x-death" not in copied(settled(retry(30), one, looping())).headers


def test_a_message_is_rejected_and_nothing_is_republished() -> None:
    assert retried() == Settlement(instruction=Instruction.REJECT)
    assert retried(headers={"x-death": [death(count=2)], "own": 1}) == Settlement(instruction=Instruction.REJECT)


def test_a_headers_exchange_in_a_loop_accepts_every_key() -> None:
    via = DeadLetter(exchange=Exchange("retry", "headers"), queue="payments.wait", after=30)

    assert retried(via) == Settlement(instruction=Instruction.REJECT)


def test_a_message_with_an_unbound_key_is_copied_with_a_bound_key() -> None:
    copy = copied(retried(exchange="", routing_key="payments"))

    assert (copy.exchange, copy.routing_key) == ("retry", "pay.cash")
    assert copy.headers["rmq-retry-routing-key"] == "payments"


def test_a_copied_message_is_copied_again_and_its_attempts_continue() -> None:
    charge = looping()
    counted, one = [], delivery(routing_key="payments")
    for _ in range(4):
        one = replace(one, attempt=charge.policy.via.attempt(charge.route, one))
        counted.append(one.attempt)
        copy = copied(settled(retry(30), one, charge))
        one = arrived(copy, queue="payments", exchange="main", routing_key=copy.routing_key)

    assert counted == [1, 2, 3, 4]


def test_a_message_with_cc_is_copied_without_cc_and_not_rejected() -> None:
    copy = copied(retried(headers={"CC": ["audit"], "own": 1}))

    assert dict(copy.headers).keys() == {
        "own",
        "rmq-retry-attempts",
        "rmq-retry-since",
        "rmq-retry-exchange",
        "rmq-retry-routing-key",
        "rmq-retry-queue",
        "rmq-retry-summary",
    }


def test_with_back_by_the_default_exchange_every_key_returns() -> None:
    by_queue = DeadLetter(exchange="retry", queue="payments.wait", after=30, back="")

    assert retried(by_queue, exchange="", routing_key="anything") == Settlement(instruction=Instruction.REJECT)


def test_a_direct_retry_exchange_gets_only_bound_keys() -> None:
    narrow = DeadLetter(exchange=Exchange("retry", "direct"), queue="payments.wait", after=30, back="")
    copy = copied(retried(narrow, exchange="", routing_key="anything"))

    assert (copy.exchange, copy.routing_key) == ("retry", "pay.cash")


def test_a_message_from_a_second_exchange_returns_by_a_key_of_the_first() -> None:
    queue = Queue("payments", bindings=[MAIN.bind("pay.cash"), Exchange("other", "direct").bind("cash")])

    assert copied(retried(queue=queue, exchange="other", routing_key="cash")).routing_key == "pay.cash"


@pytest.mark.parametrize(
    ("pattern", "key", "sent"),
    [
        ("pay.*", "pay.cash", None),
        ("pay.*", "payments", "pay.retry"),
        ("pay.#", "pay", None),
        ("#", "anything.at.all", None),
        ("*.cash.#", "x", "retry.cash.retry"),
    ],
)
def test_a_key_that_matches_no_topic_pattern_is_replaced(pattern: str, key: str, sent: str | None) -> None:
    queue = Queue("payments", bindings=[Exchange("events", "topic").bind(pattern)])
    settlement = retried(queue=queue, exchange="", routing_key=key)

    assert settlement.instruction is (Instruction.REJECT if sent is None else Instruction.ACK)
    assert (settlement.copy and settlement.copy.routing_key) == sent


@given(st.lists(st.sampled_from(["pay", "cash", "*", "#"]), min_size=1, max_size=4).map(".".join))
def test_a_copys_new_key_matches_its_binding(pattern: str) -> None:
    events = Exchange("events", "topic")
    queue = Queue("payments", bindings=[events.bind(pattern)])
    settlement = retried(queue=queue, exchange="", routing_key="no.handler.takes.this.key.at.all")

    if settlement.copy is not None:
        assert events.bind(pattern).takes(settlement.copy.routing_key)


def test_the_second_published_topology_counts_its_own_queue_only() -> None:
    """`timeline` and `timeline_retry10` on one exchange, each with the other's key."""
    acme = Exchange("acme", "direct")
    queue = Queue("timeline", type=None, bindings=[acme.bind("timeline")])
    via = DeadLetter(exchange=acme, queue="timeline_retry10", after=10, key="timeline_retry10", back_key="timeline")
    topology = topology_of(subscription(RetryThenPark(attempts=6, via=via), queue=queue, park="errors"))

    assert dict(topology.queues["timeline"].arguments) == {
        "x-dead-letter-exchange": "acme",
        "x-dead-letter-routing-key": "timeline_retry10",
    }
    assert dict(topology.queues["timeline_retry10"].arguments) == {
        "x-message-ttl": 10_000,
        "x-dead-letter-exchange": "acme",
        "x-dead-letter-routing-key": "timeline",
    }
    assert {(b.source, b.key, b.destination) for b in topology.bindings} == {
        ("acme", "timeline", "timeline"),
        ("acme", "timeline_retry10", "timeline_retry10"),
    }


def test_a_loop_of_quorum_queues_dead_letters_at_least_once() -> None:
    topology = topology_of(looping())

    assert dict(topology.queues["payments"].arguments) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-dead-letter-exchange": "retry",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert dict(topology.queues["payments.wait"].arguments) == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,
        "x-message-ttl": 30_000,
        "x-dead-letter-exchange": "main",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    assert topology.exchanges["retry"].type == "fanout"


def test_the_default_exchange_can_lead_into_the_retry_queue() -> None:
    via = DeadLetter(exchange="", queue="payments.wait", after=30)
    topology = topology_of(looping(via, Queue("payments")))

    assert topology.bindings == ()
    assert topology.exchanges == {}
    assert topology.queues["payments"].arguments["x-dead-letter-routing-key"] == "payments.wait"
    assert topology.queues["payments.wait"].arguments["x-dead-letter-routing-key"] == "payments"
    assert retried(via, Queue("payments"), exchange="") == Settlement(instruction=Instruction.REJECT)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_ttl": 60}, "a message_ttl"),
        ({"max_length": 10, "overflow": "drop-head"}, "overflow='drop-head'"),
        ({"delivery_limit": 5}, "delivery_limit=5"),
        ({"delivery_limit": None}, "delivery_limit=None"),
    ],
)
def test_a_loop_refuses_queues_that_expire_or_drop_messages(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        looping(queue=Queue("payments", **options))

    assert str(caught.value) == (
        f"Handler payments.handlers.charge: Queue 'payments' has {said} and a dead-letter loop: messages that RabbitMQ "
        "removes for that would circulate without an attempt and be dropped. Omit it, or use via=Ladder()."
    )


def test_a_changed_key_without_back_key_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"DeadLetter\(key='wait'\) changes the routing key .* Set back_key=…\."
    ):
        looping(DeadLetter(exchange="retry", queue="payments.wait", after=30, key="wait"))


@pytest.mark.parametrize(
    "via",
    [
        DeadLetter(exchange=Exchange("retry", "direct"), queue="payments.wait", after=30),
        WaitQueue(exchange="retry", queue="payments.wait"),
    ],
)
def test_a_direct_retry_exchange_with_pattern_bindings_is_refused(via: Carrier) -> None:
    queue = Queue("payments", bindings=[Exchange("events", "topic").bind("pay.*")])
    with pytest.raises(
        ConfigurationError, match=r"has the type 'direct', so the pattern 'pay\.\*' would match no retry"
    ):
        looping(via, queue)


@pytest.mark.parametrize("after", [0, -1, float("nan"), "30", 10**12])
def test_a_loop_with_an_invalid_wait_is_refused(after: float) -> None:
    with pytest.raises(ConfigurationError, match=r"DeadLetter\(after=…\) takes seconds above 0"):
        DeadLetter(exchange="retry", queue="payments.wait", after=after)


def test_a_loop_without_queue_or_exchange_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="The queue's name must be a string that is not empty"):
        DeadLetter(exchange="retry", queue="", after=30)
    with pytest.raises(ConfigurationError, match="The exchange's name must be a string that is not empty"):
        WaitQueue(exchange="", queue="payments.wait")


class TestWaitQueue:
    """One wait exchange and one wait queue with per-message TTL."""

    VIA = WaitQueue(exchange="wait-exchange", queue="wait-queue")
    PRIMARY = Exchange("primary-exchange", "direct")
    QUEUE = Queue("primary-queue", type=None, bindings=[PRIMARY.bind("routing-key-a"), PRIMARY.bind("routing-key-b")])

    def carried(self, key: str, delay: float = 30.0) -> Message:
        return copied(
            self.VIA.carry(
                looping(self.VIA, self.QUEUE).route,
                delivery(
                    queue="primary-queue", exchange="primary-exchange", routing_key=key, expiration="5", priority=7
                ),
                hop(delay, attempts=1),
            )
        )

    @pytest.mark.parametrize("key", ["routing-key-a", "routing-key-b"])
    def test_a_copy_keeps_key_and_properties_and_sets_its_expiration(self, key: str) -> None:
        copy = self.carried(key, delay=12.3456)

        assert (copy.exchange, copy.routing_key) == ("wait-exchange", key)
        assert copy.properties.expiration == "12346"
        assert copy.properties.priority == 7

    def test_an_unbound_key_is_replaced_by_a_bound_one(self) -> None:
        assert self.carried("primary-queue").routing_key == "routing-key-a"

    def test_with_back_by_queue_the_key_must_still_match_the_wait_exchange(self) -> None:
        via = WaitQueue(exchange="wait-exchange", queue="wait-queue", back="")
        carried = via.carry(looping(via, self.QUEUE).route, delivery(routing_key="other"), hop(1))

        assert copied(carried).routing_key == "routing-key-a"

    def test_the_fourth_published_topology_is_laid_out_as_published(self) -> None:
        topology = topology_of(looping(self.VIA, self.QUEUE))

        assert dict(topology.queues["wait-queue"].arguments) == {"x-dead-letter-exchange": "primary-exchange"}
        assert {(b.source, b.key, b.destination) for b in topology.bindings} == {
            ("primary-exchange", "routing-key-a", "primary-queue"),
            ("primary-exchange", "routing-key-b", "primary-queue"),
            ("wait-exchange", "routing-key-a", "wait-queue"),
            ("wait-exchange", "routing-key-b", "wait-queue"),
        }

    def test_the_wait_queue_counts_attempts_in_its_own_header(self) -> None:
        via, path = self.VIA, looping(self.VIA, self.QUEUE).route
        headers: dict[str, object] = {"rmq-retry-attempts": 3, "x-death": [death("primary-queue", count=9)]}

        assert via.attempt(path, delivery(queue="primary-queue", headers=headers)) == 4

    def test_a_delayed_publish_uses_the_wait_queue(self) -> None:
        path = looping(self.VIA, self.QUEUE).route

        assert self.VIA.delayed(path, 1.5)[:3] == ("wait-exchange", "routing-key-a", 1500)


def shared(*vias: tuple[str, Carrier, Sequence[Any]]) -> None:
    handlers = (
        subscription(RetryThenPark(attempts=4, via=via), queue=Queue(name, bindings=bindings), name=f"app.{name}")
        for name, via, bindings in vias
    )
    topology_of(*handlers)


def test_two_retry_queues_on_one_fanout_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        shared(
            ("cash", DeadLetter(exchange="retry", queue="cash.wait", after=30), [MAIN.bind("cash")]),
            ("card", DeadLetter(exchange="retry", queue="card.wait", after=30), [MAIN.bind("card")]),
        )

    assert str(caught.value) == (
        "Exchange 'retry' would send a retry with the routing key '' to 'card.wait' and 'cash.wait': it would be "
        "duplicated. Give each handler a retry exchange and a retry queue of its own, and its carrier back=''."
    )


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [("fanout", "", ""), ("direct", "pay", "pay"), ("topic", "pay.*", "pay.cash"), ("topic", "pay.cash", "#")],
)
def test_a_loop_that_returns_retries_to_another_queue_is_refused(kind: str, first: str, second: str) -> None:
    events = Exchange("events", kind)
    with pytest.raises(ConfigurationError, match=r"would send a retry with the routing key .* to 'audit' and 'cash'"):
        shared(
            ("cash", DeadLetter(exchange="retry", queue="cash.wait", after=30), [events.bind(first)]),
            ("audit", DeadLetter(exchange="other", queue="audit.wait", after=30, back=""), [events.bind(second)]),
        )

    shared(
        ("cash", DeadLetter(exchange="retry", queue="cash.wait", after=30, back=""), [events.bind(first)]),
        ("audit", DeadLetter(exchange="other", queue="audit.wait", after=30, back=""), [events.bind(second)]),
    )


def test_one_retry_queue_may_serve_queues_with_different_keys() -> None:
    via = DeadLetter(exchange="retry", queue="wait", after=30)

    shared(("cash", via, [MAIN.bind("cash")]), ("card", via, [MAIN.bind("card")]))


def test_bindings_between_exchanges_are_followed_for_duplicates() -> None:
    inner = Exchange("inner", "fanout", bindings=[Exchange("events", "fanout").bind()])
    with pytest.raises(ConfigurationError, match="it would be duplicated"):
        shared(
            ("cash", DeadLetter(exchange="retry", queue="cash.wait", after=30, back="events"), [inner.bind()]),
            ("audit", DeadLetter(exchange="other", queue="audit.wait", after=30, back=""), [inner.bind()]),
        )


def test_exchanges_bound_in_a_circle_end_the_search() -> None:
    a = Exchange("a", "fanout", bindings=[Exchange("b", "fanout").bind()])
    b = Exchange("b", "fanout", bindings=[Exchange("a", "fanout").bind()])

    shared(("cash", DeadLetter(exchange="retry", queue="cash.wait", after=30), [a.bind(), b.bind()]))
