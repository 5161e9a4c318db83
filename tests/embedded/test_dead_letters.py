"""Dead-lettering: why, how often, in which order, and where it ends."""

import pytest

from tests.embedded.rig import BOTH, QUORUM, Client, Rig

pytestmark = pytest.mark.contract

BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "main"}
AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def loop(client: Client, kind: str) -> None:
    """main, whose rejected messages wait and come back."""
    client.queue("main", {**BOTH[kind], "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    client.queue("wait", {**BOTH[kind], **BACK, "x-message-ttl": 60})


def test_a_loop_counts_each_queue_and_reason_with_the_newest_first(rig: Rig, kind: str) -> None:
    client = rig.connect()
    loop(client, kind)
    client.publish("main", "a")
    seen = []
    for _ in range(4):
        arrival = client.take("main")
        seen.append(arrival.deaths)
        client.nack(arrival, requeue=False)

    assert seen == [
        [],
        [("wait", "expired", 1), ("main", "rejected", 1)],
        [("wait", "expired", 2), ("main", "rejected", 2)],
        [("wait", "expired", 3), ("main", "rejected", 3)],
    ]


def test_the_first_and_the_last_death_have_headers_of_their_own(rig: Rig, kind: str) -> None:
    client = rig.connect()
    loop(client, kind)
    client.publish("main", "a")
    client.reject(client.take("main"), requeue=False)
    headers = client.take("main").headers
    first = [headers.get(f"x-first-death-{name}") for name in ("queue", "reason", "exchange")]
    last = [headers.get(f"x-last-death-{name}") for name in ("queue", "reason", "exchange")]

    assert first == ["main", "rejected", ""]
    assert last == (["wait", "expired", ""] if rig.version >= (4, 0) else [None, None, None])


def test_a_death_shows_where_the_message_had_been_published(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.exchange("in", "topic")
    client.queue("main", {**BOTH[kind], **AWAY})
    client.queue("dead")
    client.bind("main", "in", "a.*")
    client.publish("a.b", "x", exchange="in")
    client.reject(client.take("main"), requeue=False)
    arrival = client.take("dead")
    death = arrival.headers["x-death"][0]

    assert (arrival.exchange, arrival.key) == ("", "dead")
    assert (death["exchange"], death["routing-keys"], death["count"]) == ("in", ["a.b"], 1)
    assert "original-expiration" not in death


def test_without_a_key_of_its_own_a_dead_letter_keeps_its_key(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.exchange("dlx", "topic")
    client.queue("main", {**BOTH[kind], "x-dead-letter-exchange": "dlx"})
    client.queue("dead")
    client.bind("dead", "dlx", "ma*.#")
    client.bind("dead", "dlx", "main")
    client.publish("main", "x")
    client.reject(client.take("main"), requeue=False)
    arrival = client.take("dead")

    assert (arrival.exchange, arrival.key) == ("dlx", "main")
    assert client.get("dead", within=0.1) is None


def test_an_expiration_is_taken_off_and_reported_in_x_death(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue("main", {**BOTH[kind], **AWAY})
    client.queue("dead")
    client.publish("main", "x", expiration="50", headers={"mine": 7}, message_id="m1")
    arrival = client.take("dead")

    assert arrival.expiration is None
    assert arrival.headers["mine"] == 7
    assert arrival.headers["x-death"][0]["original-expiration"] == "50"
    assert arrival.deaths == [("main", "expired", 1)]


def test_three_automatic_deaths_are_ordered_by_recency_since_version_4(rig: Rig) -> None:
    client = rig.connect()
    for name, after in (("q4", "q2"), ("q2", "q0"), ("q0", "end")):
        client.queue(name, {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": after})
    client.queue("end")
    client.publish("q4", "x")
    names = [queue for queue, _, _ in client.take("end").deaths]

    assert names == (["q0", "q2", "q4"] if rig.version >= (4, 0) else ["q0", "q4", "q2"])


def test_a_loop_without_a_rejection_drops_the_message(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue(
        "a", {**BOTH[kind], "x-message-ttl": 30, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}
    )
    client.queue(
        "b", {**BOTH[kind], "x-message-ttl": 30, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"}
    )
    client.publish("a", "x")
    rig.wait(0.4)

    assert client.get("a", within=0) is None
    assert client.get("b", within=0) is None


def test_a_loop_of_expirations_after_a_reject_continues_only_on_3_10(rig: Rig) -> None:
    client = rig.connect()
    client.queue("main", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait", "x-message-ttl": 50})
    client.queue("wait", {**BACK, "x-message-ttl": 50})
    client.publish("main", "x")
    client.reject(client.take("main"), requeue=False)
    rig.wait(0.4)
    left = client.get("main", within=0.5)

    assert (left is not None) == (rig.version < (4, 0))


def test_a_message_is_lost_where_no_exchange_or_queue_takes_it(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue("main", {**BOTH[kind], "x-dead-letter-exchange": "nowhere"})
    client.publish("main", "x")
    client.reject(client.take("main"), requeue=False)

    assert client.get("main", within=0.1) is None


def test_at_least_once_keeps_an_unroutable_dead_letter(rig: Rig) -> None:
    client = rig.connect()
    careful = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    client.exchange("away", "direct")
    client.queue("main", {**QUORUM, **careful, "x-dead-letter-exchange": "away"})
    for name in ("dead", "after"):
        client.queue(name)
    client.exchange("in", "fanout")
    client.bind("main", "in")
    client.bind("after", "away", "after")
    for key in ("nowhere", "after"):
        client.publish(key, "x", exchange="in")
        client.reject(client.take("main"), requeue=False)
    # Dead letters leave in their order: the broker has tried the first one once the second one is there.
    client.take("after")
    client.bind("dead", "away", "nowhere")

    assert client.queue("main", passive=True).messages == 0
    assert client.get("dead", within=0.2) is None


def test_an_x_death_that_a_client_sent_counts_on_3_10_only(rig: Rig) -> None:
    client = rig.connect()
    client.queue("main", AWAY)
    client.queue("dead")
    forged = [{"queue": "main", "reason": "rejected", "count": 99, "exchange": "", "routing-keys": ["main"]}]
    client.publish("main", "x", headers={"x-death": forged})
    first = client.take("main")
    client.reject(first, requeue=False)

    assert first.deaths == [("main", "rejected", 99)]
    assert client.take("dead").deaths == [("main", "rejected", 100 if rig.version < (4, 0) else 1)]


def test_a_dead_letter_routing_key_replaces_the_cc_keys(rig: Rig) -> None:
    client = rig.connect()
    client.queue("main", AWAY)
    for name in ("dead", "copy"):
        client.queue(name)
    client.publish("main", "x", headers={"CC": ["copy"]})
    assert client.take("copy").text == "x"
    client.reject(client.take("main"), requeue=False)
    arrival = client.take("dead")

    assert ("CC" in arrival.headers) == (rig.version >= (4, 0))
    assert client.get("copy", within=0.1) is None


def test_the_time_of_a_death_is_that_of_the_first_of_its_kind(rig: Rig, kind: str) -> None:
    client = rig.connect()
    loop(client, kind)
    client.publish("main", "a")
    client.reject(client.take("main"), requeue=False)
    first = client.take("main")
    rig.wait(2.1)
    client.reject(first, requeue=False)
    second = client.take("main")

    assert [death["time"] for death in second.headers["x-death"]] == [
        death["time"] for death in first.headers["x-death"]
    ]
    assert [death["count"] for death in second.headers["x-death"]] == [2, 2]


def test_a_message_over_the_delivery_limit_does_not_return_to_its_queue(rig: Rig) -> None:
    client = rig.connect()
    client.queue(
        "main",
        {**QUORUM, "x-delivery-limit": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"},
    )
    client.queue("wait", {**BACK, "x-message-ttl": 60})
    client.publish("main", "x")
    client.reject(client.take("main"))

    assert client.get("main", within=0.5) is None
    assert client.queue("wait", passive=True).messages == 0


def test_an_internal_exchange_accepts_dead_letters_and_alternates(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.exchange("inside", "fanout", internal=True)
    client.exchange("outside", "direct", arguments={"alternate-exchange": "inside"})
    client.queue("main", {**BOTH[kind], "x-dead-letter-exchange": "inside"})
    client.queue("end")
    client.bind("end", "inside")
    client.publish("main", "dead")
    client.reject(client.take("main"), requeue=False)
    first = client.take("end")
    outcome = client.publish("nowhere", "stray", exchange="outside", mandatory=True)

    assert (first.text, outcome, client.take("end").text) == ("dead", "ack", "stray")


def test_a_dead_letter_that_its_exchange_cannot_route_goes_to_the_alternate(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.exchange("spare", "fanout")
    client.exchange("dlx", "direct", arguments={"alternate-exchange": "spare"})
    client.queue("main", {**BOTH[kind], "x-dead-letter-exchange": "dlx"})
    client.queue("end")
    client.bind("end", "spare")
    client.publish("main", "x")
    client.reject(client.take("main"), requeue=False)

    assert client.take("end").deaths == [("main", "rejected", 1)]


def test_a_dead_letter_is_routed_by_its_headers(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.exchange("dlx", "headers")
    client.queue("main", {**BOTH[kind], "x-dead-letter-exchange": "dlx"})
    for queue, reason in (("rejected", "rejected"), ("expired", "expired")):
        client.queue(queue)
        client.bind(queue, "dlx", "", {"x-match": "all-with-x", "x-first-death-reason": reason})
    client.publish("main", "x", expiration="20")
    found = client.take("expired")
    client.publish("main", "y")
    client.reject(client.take("main"), requeue=False)

    assert (found.text, client.take("rejected").text) == ("x", "y")


def test_deleted_and_purged_messages_are_not_dead_lettered(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue("main", {**BOTH[kind], **AWAY})
    client.queue("dead")
    client.publish("main", "purged")
    client.purge("main")
    client.publish("main", "deleted")

    assert client.delete_queue("main") == 1
    assert client.get("dead", within=0.2) is None
