"""Consumers: who gets what, how much at once, what comes back and where to."""

import pytest

from tests.embedded.rig import BOTH, QUORUM, Client, Refusal, Rig
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract


def filled(client: Client, kind: str, bodies: str, **arguments: object) -> None:
    named = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.queue("q", {**BOTH[kind], **named})
    for body in bodies:
        client.publish("q", body)


def texts(client: Client, count: int, *, within: float = 5.0) -> str:
    return "".join(one.text for one in client.arrivals(count, within=within))


def test_messages_come_in_order_and_no_more_than_the_prefetch(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "abcd")
    client.consume("q", prefetch=2)
    first = client.arrivals(2)

    assert [one.text for one in first] == ["a", "b"]
    assert texts(client, 1, within=0.15) == ""
    client.ack(first[1])
    assert texts(client, 2, within=0.3) == "c"
    client.ack(first[0])
    assert texts(client, 1) == "d"


def test_a_multiple_ack_settles_everything_before_it(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "abcdef")
    client.consume("q", prefetch=3)
    first = client.arrivals(3)
    client.ack(first[1], multiple=True)

    assert texts(client, 3, within=0.3) == "de"
    client.ack(0, multiple=True)
    assert texts(client, 1) == "f"


def test_with_no_ack_the_prefetch_does_not_apply(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "abcd")
    client.consume("q", prefetch=1, no_ack=True)

    assert texts(client, 4) == "abcd"
    assert client.queue("q", passive=True).messages == 0


def test_consumers_take_turns(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q")
    tags = [client.consume("q", tag=name) for name in ("one", "two", "three")]
    for body in "abcdef":
        client.publish("q", body)
    found = [one.consumer for one in client.arrivals(6)]

    assert sorted(found[:3]) == sorted(tags)
    assert found[:3] == found[3:]


def test_a_consumer_of_higher_priority_is_served_while_it_has_room(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "")
    client.consume("q", prefetch=9, tag="low")
    client.consume("q", prefetch=2, tag="high", arguments={"x-priority": 5})
    for body in "abc":
        client.publish("q", body)
    found = [one.consumer for one in client.arrivals(3)]

    assert sorted(found) == ["high", "high", "low"]


def test_a_channel_prefetch_is_shared_before_version_4_3(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "classic", "")
    client.qos(2, channel_wide=True)
    for tag in ("one", "two"):
        client.consume("q", tag=tag)
    for body in "abcd":
        client.publish("q", body)

    assert len(client.arrivals(4, within=0.3)) == (4 if rig.version >= (4, 3) else 2)


def test_a_consumer_prefetch_replaces_the_channel_prefetch(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "classic", "abcdef")
    client.qos(2, channel_wide=True)
    client.qos(4)
    client.consume("q")

    assert texts(client, 6, within=0.3) == "abcd"


def test_a_requeued_message_is_marked_redelivered_and_goes_first(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "abc", **({"delivery_limit": 5} if kind == "quorum" else {}))
    first = client.take()
    client.nack(first)
    again = client.take()

    assert (first.redelivered, again.redelivered, again.text) == (False, True, "a")


def test_a_quorum_queue_without_delivery_limit_requeues_last_on_3_10(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "quorum", "abc")
    first = client.take()
    client.nack(first)
    found = [client.get("q") for _ in range(3)]

    assert "".join(one.text for one in found if one) == ("abc" if rig.version >= (4, 0) else "bca")


def test_unacked_messages_are_redelivered_after_a_cut(rig: Rig, kind: str) -> None:
    client, other = rig.connect(), rig.connect()
    filled(other, kind, "abcdef", **({"delivery_limit": 9} if kind == "quorum" else {}))
    client.consume("q", prefetch=3)
    assert texts(client, 3) == "abc"
    client.cut()
    other.consume("q", no_ack=True)
    found = other.arrivals(6)

    assert "".join(sorted(one.text for one in found)) == "abcdef"
    assert {one.text for one in found if one.redelivered} == {"a", "b", "c"}


def test_recover_gives_everything_back(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "ab")
    held = [client.get("q"), client.get("q")]
    client.recover()
    again = [client.get("q"), client.get("q")]

    assert [one and one.redelivered for one in held] == [False, False]
    assert {one.text for one in again if one and one.redelivered} == {"a", "b"}


def test_a_single_active_consumer_hands_over_when_it_goes(rig: Rig, kind: str) -> None:
    client, other = rig.connect(), rig.connect()
    filled(client, kind, "", single_active_consumer=True)
    client.consume("q", prefetch=2)
    other.consume("q", prefetch=5)
    for body in "abc":
        client.publish("q", body)

    assert texts(client, 2) == "ab"
    assert texts(other, 1, within=0.2) == ""
    client.cut()
    assert sorted(texts(other, 3)) == ["a", "b", "c"]


@pytest.mark.parametrize("consumed", [True, False])
def test_get_is_refused_by_quorum_queues_with_a_single_active_consumer(rig: Rig, consumed: bool) -> None:
    client = rig.connect()
    filled(client, "quorum", "", single_active_consumer=True)
    if consumed:
        client.consume("q")

    with pytest.raises(Refusal) as refused:
        client.get("q", within=0)
    assert refused.value.code == 405


def test_an_exclusive_consumer_refuses_a_second_one(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    filled(client, "classic", "")
    client.consume("q", exclusive=True)

    with pytest.raises(Refusal) as refused:
        other.consume("q")
    assert refused.value.text.startswith("ACCESS_REFUSED - queue 'q' in vhost '")
    assert refused.value.text.endswith("' in exclusive use")


def test_an_exclusive_consumer_is_refused_with_single_active_consumer(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "classic", "", single_active_consumer=True)

    with pytest.raises(Refusal, match="in exclusive use"):
        client.consume("q", exclusive=True)


def test_quorum_queues_ignore_the_exclusive_flag_of_consumers(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    filled(client, "quorum", "")
    client.consume("q", exclusive=True, prefetch=1)
    other.consume("q", exclusive=True, prefetch=1)
    for body in "ab":
        client.publish("q", body)

    assert sorted(texts(client, 1) + texts(other, 1)) == ["a", "b"]


def test_quorum_queues_refuse_a_channel_prefetch_before_version_4_3(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "quorum", "")
    client.qos(1, channel_wide=True)
    told = ""
    try:
        client.consume("q")
    except Refusal as refused:
        told = refused.text

    assert ("does not support global qos" in told) == (rig.version < (4, 3))


def test_a_consumer_is_cancelled_when_its_queue_is_deleted(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "")
    tag = client.consume("q")
    client.delete_queue("q")

    assert client.cancelled() == [tag]


def test_an_auto_delete_queue_goes_with_its_last_consumer(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", auto_delete=True)
    tags = [client.consume("q"), client.consume("q")]
    client.cancel(tags[0])
    assert client.publish("q", "x", mandatory=True) == "ack"
    client.cancel(tags[1])

    # RabbitMQ 4.3 deletes it a moment later, and nacks what comes meanwhile.
    wait_until(lambda: client.publish("q", "x", mandatory=True) == "returned", what="the queue is gone")


def test_an_exclusive_queue_goes_with_its_connection(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    client.queue("q", exclusive=True)
    assert other.publish("q", "x", mandatory=True) == "ack"
    client.cut()
    rig.wait(0.3)

    assert other.publish("q", "x", mandatory=True) == "returned"


def test_a_rejected_message_is_counted_up_to_the_limit(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "quorum", "x", delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.queue("dead")
    counts = []
    while (found := client.get("q", within=0.3)) is not None:
        counts.append(found.headers.get("x-delivery-count"))
        client.reject(found)
    dead = client.get("dead")

    assert counts == [None if rig.version >= (4, 0) else 0, 1, 2]
    assert dead is not None
    assert dead.deaths == [("q", "delivery_limit", 1)]


def test_a_nack_is_no_failure_since_version_4_3(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "quorum", "x", delivery_limit=2)
    for _ in range(3):
        found = client.take("q", within=0.3)
        client.nack(found)

    assert (client.get("q", within=0.3) is not None) == (rig.version >= (4, 3))


def test_a_forged_delivery_count_is_overwritten_on_3_10_and_shown_later(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", QUORUM)
    client.publish("q", "x", headers={"x-delivery-count": 50, "mine": 1})
    first = client.take()
    client.reject(first)
    second = client.take()

    assert first.headers["x-delivery-count"] == (50 if rig.version >= (4, 0) else 0)
    assert (second.headers["x-delivery-count"], second.headers["mine"]) == (1, 1)


def test_an_empty_name_means_the_last_server_named_queue(rig: Rig) -> None:
    client = rig.connect()
    first = client.queue("", exclusive=True, durable=False)
    client.bind("", "amq.fanout")

    assert first.queue.startswith("amq.gen-")
    assert client.publish("", "x", exchange="amq.fanout", mandatory=True) == "ack"
    assert client.purge("") == 1


def test_a_direct_reply_reaches_its_channel_without_a_queue(rig: Rig) -> None:
    client, server = rig.connect(), rig.connect()
    client.queue("rpc")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("rpc", "question", reply_to="amq.rabbitmq.reply-to", correlation_id="c1")
    question = server.get("rpc")
    assert question is not None
    assert question.reply_to is not None
    assert question.reply_to.startswith("amq.rabbitmq.reply-to.")
    told = server.queue(question.reply_to, passive=True)
    outcome = server.publish(question.reply_to, "answer", mandatory=True)
    answer = client.arrivals(1)

    assert told.consumers == 1
    assert [one.text for one in answer] == ["answer"]
    assert outcome == ("ack" if rig.version >= (4, 3) else "returned")


def test_a_cancelled_single_active_consumer_hands_over(rig: Rig, kind: str) -> None:
    client, other = rig.connect(), rig.connect()
    filled(client, kind, "", single_active_consumer=True)
    tag = client.consume("q", prefetch=1)
    other.consume("q", prefetch=5)
    for body in "abc":
        client.publish("q", body)
    held = client.arrivals(1)
    client.cancel(tag)

    stalled = kind == "classic" and rig.version < (4, 0)

    assert texts(other, 2, within=0.3) == ("" if stalled else "bc")
    client.nack(held[0])
    assert texts(other, 3, within=0.5) == ("abc" if stalled else "a")


def test_a_declaration_counts_the_consumers(rig: Rig, kind: str) -> None:
    client, other = rig.connect(), rig.connect()
    filled(client, kind, "")
    tags = [client.consume("q"), client.consume("q"), other.consume("q")]
    before = client.queue("q", passive=True).consumers
    client.cancel(tags[0])
    other.cut()

    wait_until(lambda: client.queue("q", passive=True).consumers == 1, what="one is left")
    assert before == 3


def test_a_reply_to_a_closed_client_is_returned_before_version_4_3(rig: Rig) -> None:
    client, server = rig.connect(), rig.connect()
    client.queue("rpc")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    client.publish("rpc", "question", reply_to="amq.rabbitmq.reply-to")
    question = server.get("rpc")
    assert question is not None
    client.cut()
    rig.wait(0.3)

    assert server.publish(question.reply_to or "", "answer") == "ack"
    assert server.publish(question.reply_to or "", "answer", mandatory=True) == (
        "ack" if rig.version >= (4, 3) else "returned"
    )


def test_a_reply_to_an_invented_address_is_returned(rig: Rig) -> None:
    client = rig.connect()

    assert client.publish("amq.rabbitmq.reply-to.bogus", "answer") == "ack"
    assert client.publish("amq.rabbitmq.reply-to.bogus", "answer", mandatory=True) == "returned"


def test_replies_have_delivery_tags_of_the_channel_since_version_4_3(rig: Rig) -> None:
    client, server = rig.connect(), rig.connect()
    client.queue("rpc")
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    tags = []
    for _ in range(2):
        client.publish("rpc", "question", reply_to="amq.rabbitmq.reply-to")
        question = server.get("rpc")
        assert question is not None
        server.publish(question.reply_to or "", "answer")
        tags += [one.tag for one in client.arrivals(1)]
    client.publish("rpc", "own")
    own = client.take("rpc")

    assert [*tags, own.tag] == ([1, 2, 3] if rig.version >= (4, 3) else [1, 1, 1])


def test_a_cancelled_consumer_keeps_its_unacked_messages(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "ab")
    tag = client.consume("q", prefetch=1)
    held = client.arrivals(1)
    client.cancel(tag)
    second = client.get("q")
    client.ack(held[0])

    assert second is not None
    assert (held[0].text, second.text, second.redelivered) == ("a", "b", False)


def test_each_consumer_has_its_own_prefetch(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "")
    client.consume("q", prefetch=1, tag="one")
    client.consume("q", prefetch=2, tag="two")
    for body in "abcde":
        client.publish("q", body)
    found = [one.consumer for one in client.arrivals(5, within=0.4)]

    assert sorted(found) == ["one", "two", "two"]


def test_a_client_with_two_queues_keeps_one_when_the_other_is_deleted(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "")
    client.queue("other")
    gone, stays = client.consume("q"), client.consume("other")
    client.delete_queue("q")
    assert client.cancelled() == [gone]
    client.publish("other", "x")

    assert [one.consumer for one in client.arrivals(1)] == [stays]


def test_a_classic_queue_requeues_messages_to_their_old_places(rig: Rig) -> None:
    client = rig.connect()
    filled(client, "classic", "abcd")
    held = [client.get("q") for _ in range(3)]
    for one in (held[2], held[0]):
        assert one is not None
        client.reject(one)
    found = [client.get("q") for _ in range(3)]

    assert "".join(one.text for one in found if one) == "acd"


def test_several_are_rejected_at_once(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(client, kind, "abcd", dead_letter_exchange="", dead_letter_routing_key="dead")
    client.queue("dead")
    held = [client.get("q") for _ in range(4)]
    assert held[2] is not None
    client.nack(held[2], multiple=True, requeue=False)
    dead = [client.get("dead") for _ in range(3)]

    assert "".join(sorted(one.text for one in dead if one)) == "abc"
    assert client.queue("q", passive=True).messages == 0
