"""Refusals: which code, in which words, and that the same question gets the same answer from both brokers."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.embedded.rig import QUORUM, Client, Refusal, Rig

pytestmark = pytest.mark.contract

Ask = Callable[[Client], Any]
V4 = (4, 0)


def ready(client: Client) -> None:
    client.queue("c")
    client.queue("q", QUORUM)
    client.queue("ttl", {"x-message-ttl": 1000, "x-dead-letter-exchange": "dx"})
    client.exchange("e", "direct", durable=True)
    client.exchange("i", "direct", internal=True)
    client.publish("c", "x")


def delete_used_exchange(client: Client) -> None:
    client.bind("c", "e", "k")
    client.delete_exchange("e", if_unused=True)


def unequal(argument: str, thing: str, received: str, current: str) -> str:
    start = f"PRECONDITION_FAILED - inequivalent arg '{argument}' for {thing} in vhost '{{}}'"
    return f"{start}: received {received} but current is {current}"


def declare(name: str, **arguments: object) -> Ask:
    return lambda client: client.queue(name, {"x-" + key.replace("_", "-"): value for key, value in arguments.items()})


TTL = {"message_ttl": 1000, "dead_letter_exchange": "dx"}
MISSING = "NOT_FOUND - no {} 'nope' in vhost '{{}}'"
WORDS: Mapping[str, tuple[Ask, str]] = {
    "passive queue": (lambda c: c.queue("nope", passive=True), MISSING.format("queue")),
    "passive exchange": (lambda c: c.exchange("nope", passive=True), MISSING.format("exchange")),
    "consume": (lambda c: c.consume("nope"), MISSING.format("queue")),
    "get": (lambda c: c.get("nope", within=0), MISSING.format("queue")),
    "purge": (lambda c: c.purge("nope"), MISSING.format("queue")),
    "bind to no queue": (lambda c: c.bind("nope", "e", "k"), MISSING.format("queue")),
    "bind to no exchange": (lambda c: c.bind("c", "nope", "k"), MISSING.format("exchange")),
    "bind to neither": (lambda c: c.bind("nein", "nope", "k"), MISSING.format("exchange")),
    "exchange to no exchange": (lambda c: c.bind_exchange("e", "nope"), MISSING.format("exchange")),
    "no exchange to exchange": (lambda c: c.bind_exchange("nope", "e"), MISSING.format("exchange")),
    "publish": (lambda c: c.publish("k", "x", exchange="nope"), MISSING.format("exchange")),
    "other value": (
        declare("ttl", **{**TTL, "message_ttl": 2000}),
        unequal("x-message-ttl", "queue 'ttl'", "'2000'", "'1000'"),
    ),
    "value left out": (
        declare("ttl", dead_letter_exchange="dx"),
        unequal("x-message-ttl", "queue 'ttl'", "none", "the value '1000' of type 'signedint'"),
    ),
    "text": (
        declare("ttl", **{**TTL, "dead_letter_exchange": "dy"}),
        unequal("x-dead-letter-exchange", "queue 'ttl'", "'dy'", "'dx'"),
    ),
    "value added": (
        declare("c", single_active_consumer=True),
        unequal("x-single-active-consumer", "queue 'c'", "the value 'true' of type 'bool'", "none"),
    ),
    "two differences": (
        declare("ttl", message_ttl=2000, expires=5000, max_length=4),
        unequal("x-expires", "queue 'ttl'", "the value '5000' of type 'signedint'", "none"),
    ),
    "not durable": (
        lambda c: c.queue("c", durable=False),
        unequal("durable", "queue 'c'", "'false'", "'true'"),
    ),
    "auto delete": (
        lambda c: c.queue("c", auto_delete=True),
        unequal("auto_delete", "queue 'c'", "'true'", "'false'"),
    ),
    "other type of exchange": (
        lambda c: c.exchange("e", "fanout", durable=True),
        unequal("type", "exchange 'e'", "'fanout'", "'direct'"),
    ),
    "internal": (
        lambda c: c.exchange("e", "direct", durable=True, internal=True),
        unequal("internal", "exchange 'e'", "'true'", "'false'"),
    ),
    "alternate": (
        lambda c: c.exchange("e", "direct", durable=True, arguments={"alternate-exchange": "z"}),
        unequal("alternate-exchange", "exchange 'e'", "the value 'z' of type 'longstr'", "none"),
    ),
    "default exchange": (
        lambda c: c.exchange("", "direct", durable=True),
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "bind to default exchange": (
        lambda c: c.bind("c", "", "k"),
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "reserved exchange": (
        lambda c: c.exchange("amq.mine", "direct"),
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "reserved queue": (
        lambda c: c.queue("amq.mine"),
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "system exchange": (
        lambda c: c.delete_exchange("amq.direct"),
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '{}' not allowed",
    ),
    "exchange in use": (
        delete_used_exchange,
        "PRECONDITION_FAILED - exchange 'e' in vhost '{}' in use",
    ),
    "queue not empty": (
        lambda c: c.delete_queue("c", if_empty=True),
        "PRECONDITION_FAILED - queue 'c' in vhost '{}' not empty",
    ),
    "queue in use": (
        lambda c: (c.consume("c"), c.delete_queue("c", if_unused=True)),
        "PRECONDITION_FAILED - queue 'c' in vhost '{}' in use",
    ),
    "quorum if empty": (
        lambda c: c.delete_queue("q", if_empty=True),
        (
            "NOT_IMPLEMENTED - cannot delete queue 'q' in vhost '{}'. queue.delete operations with if-empty flag set "
            "are not supported by quorum queues"
        ),
    ),
    "internal publish": (
        lambda c: c.publish("k", "x", exchange="i"),
        "ACCESS_REFUSED - cannot publish to internal exchange 'i' in vhost '{}'",
    ),
    "x-match": (
        lambda c: c.bind("c", "amq.headers", "", {"x-match": "bogus"}),
        'PRECONDITION_FAILED - Invalid x-match field value <<"bogus">>; expected all, any, all-with-x, or any-with-x',
    ),
    "user": (
        lambda c: c.publish("c", "x", user_id="other"),
        "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'",
    ),
    "CC": (
        lambda c: c.publish("c", "x", headers={"CC": "k"}),
        'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"CC",longstr}}',
    ),
    "unknown tag": (lambda c: c.ack(7), "PRECONDITION_FAILED - unknown delivery tag 7"),
    "unknown tag, multiple": (lambda c: c.ack(7, multiple=True), "PRECONDITION_FAILED - unknown delivery tag 7"),
    "tag 0": (lambda c: c.ack(0), "PRECONDITION_FAILED - unknown delivery tag 0"),
    "unknown tag to reject": (lambda c: c.reject(7), "PRECONDITION_FAILED - unknown delivery tag 7"),
    "transactions beside confirms": (
        lambda c: c.tx(),
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
    ),
    "no reply consumer": (
        lambda c: c.publish("c", "x", reply_to="amq.rabbitmq.reply-to"),
        "PRECONDITION_FAILED - fast reply consumer does not exist",
    ),
    "reply consumer with acks": (
        lambda c: c.consume("amq.rabbitmq.reply-to"),
        "PRECONDITION_FAILED - reply consumer cannot acknowledge",
    ),
    "priority of a consumer": (
        lambda c: c.consume("c", arguments={"x-priority": "a"}),
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'c' in vhost '{}': \"expected integer, got longstr\"",
    ),
    "server-named quorum": (
        lambda c: c.queue("", QUORUM),
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
    ),
    "transient quorum": (
        lambda c: c.queue("n", QUORUM, durable=False),
        "PRECONDITION_FAILED - invalid property 'non-durable' for queue 'n' in vhost '{}'",
    ),
}

BAD_ARGUMENTS: Mapping[str, list[tuple[object, str]]] = {
    "message_ttl": [(-1, "{value_negative,-1}"), ("a", '"expected integer, got longstr"')],
    "expires": [(0, "{value_zero,0}"), (315_360_000_001, "{value_too_large,315360000001}")],
    "max_length": [(-1, "{value_negative,-1}"), ("4", '"expected integer, got longstr"')],
    "max_length_bytes": [(-1, "{value_negative,-1}")],
    "overflow": [("bogus", "invalid_overflow"), (5, "{unacceptable_type,signedint}")],
    "max_priority": [(256, "{max_value_exceeded,256}")],
    "single_active_consumer": [("true", "{unacceptable_type,longstr}")],
    "queue_type": [("bogus", "\"unsupported queue type 'bogus'\""), (5, "{unacceptable_type,signedint}")],
    "queue_version": [
        (3, "\"unsupported queue version '3'\""),
        ("2", '"expected integer, got longstr"'),
        (-1, "{value_negative,-1}"),
    ],
    "dead_letter_routing_key": [("k", "routing_key_but_no_dlx_defined"), (5, "{unacceptable_type,signedint}")],
}
EXPIRATIONS = {
    "-1": "{value_negative,-1}",
    "abc": "no_integer",
    "1.5": '{leftover_string,".5"}',
    "": "no_integer",
    "315360000001": "{value_too_large,315360000001}",
    " 10": "no_integer",
    "10x": '{leftover_string,"x"}',
}


def vhost_name(rig: Rig) -> str:
    return getattr(rig, "url", "/%2F").rpartition("/")[2].replace("%2F", "/")


HARD = {"COMMAND_INVALID", "NOT_ALLOWED", "NOT_IMPLEMENTED", "INTERNAL_ERROR"}


def refusal(client: Client, ask: Ask) -> str:
    with pytest.raises(Refusal) as refused:
        ask(client)
    name = refused.value.text.partition(" - ")[0]
    assert refused.value.hard == (name in HARD)
    return refused.value.text


@pytest.mark.parametrize("case", WORDS)
def test_both_brokers_refuse_in_the_same_words(rig: Rig, case: str) -> None:
    client = rig.connect()
    ready(client)
    ask, words = WORDS[case]

    assert refusal(client, ask) == words.format(vhost_name(rig))


@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [(name, value, problem) for name, cases in BAD_ARGUMENTS.items() for value, problem in cases],
)
def test_an_invalid_argument_value_is_refused(rig: Rig, argument: str, value: object, problem: str) -> None:
    name = "x-" + argument.replace("_", "-")
    told = refusal(rig.connect(), declare("bad", **{argument: value}))

    assert told == f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'bad' in vhost '{vhost_name(rig)}': {problem}"


@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [
        ("quorum_initial_group_size", "1", '"expected integer, got longstr"'),
        ("max_in_memory_length", "1", '"expected integer, got longstr"'),
        ("queue_leader_locator", "nowhere", "invalid_queue_locator_arg"),
        ("queue_leader_locator", 5, "{unacceptable_type,signedint}"),
        ("dead_letter_strategy", "now-and-then", "invalid_dlx_strategy"),
        ("overflow", "bogus", "invalid_overflow"),
    ],
)
def test_an_invalid_argument_value_of_a_quorum_queue_is_refused(
    rig: Rig, argument: str, value: object, problem: str
) -> None:
    name = "x-" + argument.replace("_", "-")
    told = refusal(rig.connect(), declare("bad", queue_type="quorum", **{argument: value}))

    assert told == f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'bad' in vhost '{vhost_name(rig)}': {problem}"


def codes(rig: Rig, *asks: Ask) -> list[int]:
    """The broker's answers, each on its own connection; 0 is yes."""
    found = []
    for ask in asks:
        try:
            ask(rig.connect())
        except Refusal as refused:
            found.append(refused.code)
        else:
            found.append(0)
    return found


def test_version_4_3_ignores_the_queue_mode(rig: Rig) -> None:
    asked = codes(
        rig, declare("mode", queue_mode="bogus"), declare("one", queue_version=1), declare("two", queue_version=2)
    )

    assert asked == ([0, 406, 0] if rig.version >= (4, 3) else [406, 0, 0])


def test_versions_differ_in_the_arguments_they_accept(rig: Rig) -> None:
    asked = codes(
        rig,
        declare("a", consumer_timeout=5000),
        declare("b", queue_type="quorum", consumer_timeout="5000"),
        declare("c", queue_leader_locator="balanced"),
    )

    assert asked == {(3, 10): [0, 0, 406], (4, 0): [0, 0, 0], (4, 3): [406, 406, 0]}[rig.version[0], rig.version[1]]


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        ("classic", "delivery_limit"),
        ("classic", "dead_letter_strategy"),
        ("quorum", "max_priority"),
        ("quorum", "queue_mode"),
        ("quorum", "queue_version"),
    ],
)
def test_an_argument_of_the_other_type_is_refused(rig: Rig, kind: str, argument: str) -> None:
    # That the value means nothing either is not looked at any more.
    values = {"dead_letter_strategy": "bogus", "queue_mode": "lazy"}
    name = "x-" + argument.replace("_", "-")
    told = refusal(rig.connect(), declare("bad", queue_type=kind, **{argument: values.get(argument, 5)}))
    place = f"queue 'bad' in vhost '{vhost_name(rig)}'"

    assert told == f"PRECONDITION_FAILED - invalid arg '{name}' for {place} of queue type rabbit_{kind}_queue"


OF_ONE_TYPE: Mapping[str, Mapping[str, object]] = {
    "classic": {
        "x-dead-letter-strategy": "at-least-once",
        "x-quorum-initial-group-size": 1,
        "x-delivery-limit": 5,
        "x-max-in-memory-length": 5,
        "x-max-in-memory-bytes": 5,
        "x-delayed-retry-type": "all",
        "x-consumer-timeout": 60_000,
        "x-consumer-disconnected-timeout": 60_000,
    },
    "quorum": {
        "x-max-priority": 5,
        "x-queue-mode": "lazy",
        "x-queue-version": 2,
        "x-queue-master-locator": "min-masters",
    },
}
"""Arguments that mean nothing to a queue of this type."""


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_an_argument_of_the_other_type_is_not_compared(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue("q", {"x-queue-type": kind})
    for name, value in OF_ONE_TYPE[kind].items():
        assert client.queue("q", {"x-queue-type": kind, name: value}).queue == "q"


@pytest.mark.parametrize("argument", ["consumer_timeout", "consumer_disconnected_timeout"])
def test_timeouts_of_consumers_are_compared_from_version_4_3_on(rig: Rig, argument: str) -> None:
    asked = codes(
        rig,
        declare("classic", **{argument: 5000}),
        declare("wrong", queue_type="quorum", **{argument: "5000"}),
        declare("quorum", queue_type="quorum", **{argument: 5000}),
        declare("quorum", queue_type="quorum", **{argument: 6000}),
    )

    assert asked == ([406, 406, 0, 406] if rig.version >= (4, 3) else [0, 0, 0, 0])


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("argument", "value", "since"),
    [
        ("x-max-age", "1h", (3, 10)),
        ("x-stream-max-segment-size-bytes", 1000, (3, 10)),
        ("x-initial-cluster-size", 1, (3, 10)),
        ("x-stream-filter-size-bytes", 100, (4, 3)),
    ],
)
def test_an_argument_of_streams_is_refused(
    rig: Rig, kind: str, argument: str, value: object, since: tuple[int, int]
) -> None:
    client = rig.connect()
    place = f"queue 'bad' in vhost '{vhost_name(rig)}'"
    arguments = {"x-queue-type": kind, argument: value}
    if rig.version < since:
        assert client.queue("bad", arguments).messages == 0
        return
    told = refusal(client, lambda c: c.queue("bad", arguments))

    assert told == f"PRECONDITION_FAILED - invalid arg '{argument}' for {place} of queue type rabbit_{kind}_queue"


def test_a_master_locator_ends_the_connection_from_version_4_3_on(rig: Rig) -> None:
    client = rig.connect()
    arguments = {"x-queue-master-locator": "min-masters"}
    client.queue("there")
    if rig.version < (4, 3):
        assert client.queue("q", arguments).messages == 0
    else:
        told = refusal(client, lambda c: c.queue("q", arguments))
        assert told.startswith("INTERNAL_ERROR - Feature `queue_master_locator` is deprecated.\nBy default, this ")
        assert told.endswith("regardless of the configuration; actual version to be determined.\nTo con...")
    place = f"queue 'there' in vhost '{vhost_name(rig)}'"

    assert refusal(rig.connect(), lambda c: c.queue("there", arguments)) == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-master-locator' for {place}: "
        "received the value 'min-masters' of type 'longstr' but current is none"
    )


def test_version_4_3_treats_an_empty_queue_type_as_a_type(rig: Rig) -> None:
    ask = declare("q", queue_type="")
    place = f"queue 'q' in vhost '{vhost_name(rig)}'"
    if rig.version < (4, 3):
        told = refusal(rig.connect(), ask)
        assert told == f"PRECONDITION_FAILED - invalid arg 'x-queue-type' for {place}: \"unsupported queue type ''\""
        return
    ask(rig.connect())
    ask(rig.connect())

    assert refusal(rig.connect(), lambda c: c.queue("q")) == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for {place}: received 'classic' but current is ''"
    )


def test_the_trace_exchange_exists_and_refuses_publishes(rig: Rig) -> None:
    client = rig.connect()
    client.exchange("amq.rabbitmq.trace", "topic", durable=True, internal=True)
    client.queue("q")
    client.bind("q", "amq.rabbitmq.trace", "#")

    assert refusal(client, lambda c: c.publish("k", "x", exchange="amq.rabbitmq.trace")) == (
        "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '" + vhost_name(rig) + "'"
    )


@pytest.mark.parametrize("match", ["bogus", 5])
def test_an_invalid_binding_is_refused_and_its_unbind_accepted(rig: Rig, match: object) -> None:
    client = rig.connect()
    client.queue("q")
    client.unbind("q", "amq.headers", "k", {"x-match": match})

    assert "Invalid x-match" in refusal(client, lambda c: c.bind("q", "amq.headers", "k", {"x-match": match}))


@pytest.mark.parametrize("text", EXPIRATIONS)
def test_an_invalid_expiration_is_refused(rig: Rig, text: str) -> None:
    client = rig.connect()
    client.queue("c")
    told = refusal(client, lambda c: c.publish("c", "x", expiration=text))

    assert told == f"PRECONDITION_FAILED - invalid expiration '{text}': {EXPIRATIONS[text]}"


@pytest.mark.parametrize("text", ["+10000", "010000", "0"])
def test_an_expiration_may_be_written_in_several_ways(rig: Rig, text: str) -> None:
    client = rig.connect()
    client.queue("c")

    assert client.publish("c", "x", expiration=text) == "ack"


def test_a_redeclaration_must_name_the_queue_type(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    ready(client)
    received = "received none but current is the value 'quorum' of type 'longstr'"
    newer = "received 'classic' but current is 'quorum'"
    start = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '{vhost_name(rig)}': "

    assert refusal(other, declare("q")) == start + (newer if rig.version >= V4 else received)
    client.queue("c", {"x-queue-type": "classic"})


def test_a_queue_that_was_declared_as_classic_is_named_so(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    client.queue("c", {"x-queue-type": "classic"})
    start = f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'c' in vhost '{vhost_name(rig)}': "

    assert refusal(other, declare("c", queue_type="quorum")) == start + "received 'quorum' but current is 'classic'"
    client.queue("c")
    client.queue("c", {"x-queue-type": "classic"})


def test_an_exchange_of_an_unknown_type_ends_the_connection_on_3_10(rig: Rig) -> None:
    told = refusal(rig.connect(), lambda c: c.exchange("e", "bogus"))

    assert told.startswith("PRECONDITION_FAILED" if rig.version >= V4 else "COMMAND_INVALID - unknown exchange type")


def test_another_connection_cannot_touch_an_exclusive_queue(rig: Rig) -> None:
    client = rig.connect()
    client.queue("x", exclusive=True)
    asks: list[Ask] = [
        lambda c: c.queue("x", passive=True),
        lambda c: c.queue("x", exclusive=True),
        lambda c: c.queue("x"),
        lambda c: c.consume("x"),
        lambda c: c.get("x", within=0),
        lambda c: c.delete_queue("x"),
        lambda c: c.bind("x", "amq.direct", "k"),
        lambda c: c.purge("x"),
    ]
    found = {refusal(rig.connect(), ask) for ask in asks}

    place = f"queue 'x' in vhost '{vhost_name(rig)}'"
    why = (
        "originally declared on another connection or the exclusive property value does not match that of the original"
    )

    assert found == {
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked {place}. It could be {why} declaration."
    }


def test_a_missing_object_may_be_deleted_and_unbound(rig: Rig) -> None:
    client = rig.connect()
    ready(client)
    client.delete_exchange("nope")
    client.unbind("nope", "e", "k")
    client.unbind("c", "nope", "k")
    client.unbind("c", "e", "k")

    assert client.delete_queue("nope") == 0


def test_unknown_arguments_are_taken_and_change_nothing(rig: Rig) -> None:
    client = rig.connect()
    client.queue("a", {"x-foo": 1})

    assert client.queue("a").messages == 0
