"""A wrong type of any argument of a policy, carrier, back-off, queue, exchange, breaker or handler is one sentence."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from django_rmq_retry import (
    AckFirst,
    Batch,
    Breaker,
    Broadcast,
    DeadLetter,
    Exchange,
    Exponential,
    Fixed,
    InPlace,
    Ladder,
    NackRequeue,
    Native,
    OneShot,
    Queue,
    Republish,
    RetryThenPark,
    Schedule,
    Steps,
    StopTheLine,
    WaitQueue,
    handler,
)
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.testing import isolated_handlers

# Wrong for an argument of each kind. A type that is an int or a str to Python is no number or text here.
ANY: tuple[object, ...] = (object(), b"bytes", 1j)
NUMBER = (*ANY, "10", True, [10], {}, float("nan"), -1)
WHOLE = (*ANY, "3", True, 1.5, [3], -1)
NUMBERS = (*ANY, 10, "10, 60", [None], ["10"], [True], [-1], {10: 60}, Fixed(1))
TEXT = (*ANY, 7, True, ["a"], {})
FLAG = (*ANY, 1, 0, "yes", None, [])
BACKOFF = (*ANY, 10, "10", [10, 60], Fixed, Ladder(), RetryThenPark())
CARRIER = (*ANY, "DeadLetter", Ladder, 10, None, Fixed(1), Queue("q"))
ERRORS = (*ANY, 7, "BankDown", [7], ["BankDown"], ValueError(), [int], None, True)
FUNCTION = (*ANY, 7, "lambda", True, [])
TABLE = (*ANY, 7, "x-max-length", [("a", 1)], {1: 2})
EXCHANGE = (*ANY, 7, True, ["main"], Queue("q"), Exchange)
QUEUE = (*ANY, 7, True, ["q"], Exchange("main"), Queue, "")
# No AMQP name or database column takes NUL, RabbitMQ drops line ends from names, and no text holds half a pair.
UNWRITABLE = ("a\0", "a\n", "a\rb", "a\ud800", "é" * 128)
BINDINGS = (*ANY, 7, "key", ["key"], [Exchange("main")], Exchange("main", "topic").bind("a"))
CHOICE = (*ANY, 7, "nonsense", True, [])
SCHEDULES = (*ANY, 7, "x", [Schedule(3, Fixed(1))], {ValueError: 3}, {"ValueError": Schedule(3, Fixed(1))})

POLICY = (*ANY, 7, "OneShot", RetryThenPark, Ladder(), Fixed(1))

WRONG: Mapping[Callable[..., Any], Mapping[str, tuple[object, ...]]] = {
    Fixed: {"seconds": (*NUMBER, None), "jitter": (*NUMBER, None, 2)},
    Steps: {"seconds": (*NUMBERS, None, []), "jitter": (*NUMBER, None)},
    Exponential: {"first": (*NUMBER, None), "factor": (*NUMBER, None), "cap": NUMBER, "jitter": (*NUMBER, None)},
    Schedule: {"attempts": (*WHOLE, 0), "backoff": (*BACKOFF, None)},
    RetryThenPark: {
        "attempts": (*WHOLE, 0),
        "backoff": BACKOFF,
        "park_on": ERRORS,
        "retry_on": ERRORS,
        "retry_if": FUNCTION,
        "schedules": (*SCHEDULES, None),
        "budget": NUMBER,
        "via": CARRIER,
    },
    StopTheLine: {"backoff": (*BACKOFF, None), "park_on": ERRORS, "attempts": (*WHOLE, 0)},
    OneShot: {"park": FLAG},
    Ladder: {"steps": NUMBERS},
    DeadLetter: {
        "exchange": (*EXCHANGE, None, *UNWRITABLE),
        "queue": (*QUEUE, None, *UNWRITABLE),
        "after": (*NUMBER, None),
        "key": (*TEXT, *UNWRITABLE),
        "back": (*EXCHANGE, *UNWRITABLE),
        "back_key": (*TEXT, *UNWRITABLE),
    },
    WaitQueue: {
        "exchange": (*EXCHANGE, None, "", *UNWRITABLE),
        "queue": (*QUEUE, None, *UNWRITABLE),
        "back": (*EXCHANGE, *UNWRITABLE),
    },
    Native: {"first": (*NUMBER, None), "cap": NUMBER},
    NackRequeue: {},
    Republish: {},
    AckFirst: {},
    InPlace: {},
    Breaker: {
        "on": ERRORS,
        "share": (*NUMBER, 2),
        "of": (*WHOLE, None),
        "probe_after": (*NUMBER, None),
        "longest": (*NUMBER, None),
    },
    Exchange: {
        "name": (*TEXT, None, *UNWRITABLE),
        "type": (*CHOICE, None),
        "durable": FLAG,
        "auto_delete": FLAG,
        "internal": FLAG,
        "alternate": (*EXCHANGE, *UNWRITABLE),
        "bindings": (*BINDINGS, None),
        "arguments": (*TABLE, None),
        "existing": FLAG,
    },
    Exchange("events", "headers").bind: {
        "key": (*TEXT, None, "order.#", *UNWRITABLE),
        "headers": TABLE,
        "match": (*CHOICE, None),
    },
    Queue: {
        "name": (*TEXT, None, "", *UNWRITABLE),
        "type": CHOICE,
        "bindings": (*BINDINGS, None),
        "max_priority": WHOLE,
        "max_length": WHOLE,
        "max_bytes": WHOLE,
        "overflow": (*CHOICE, None),
        "message_ttl": (*NUMBER, 0),
        "expired": (*CHOICE, None),
        "single_active_consumer": FLAG,
        "delivery_limit": WHOLE,
        "durable": FLAG,
        "exclusive": FLAG,
        "auto_delete": FLAG,
        "arguments": (*TABLE, None),
        "existing": FLAG,
    },
    Broadcast: {
        "name": (*TEXT, None, "", *UNWRITABLE),
        "bindings": (*BINDINGS, None),
        "max_priority": WHOLE,
        "max_length": WHOLE,
        "max_bytes": WHOLE,
        "overflow": (*CHOICE, None),
        "message_ttl": (*NUMBER, 0),
        "expired": (*CHOICE, None),
        "single_active_consumer": FLAG,
        "delivery_limit": WHOLE,
        "arguments": (*TABLE, None),
    },
    Batch: {"size": (*WHOLE, None, 1, 1001), "wait": (*NUMBER, None, 0, 61)},
    handler: {
        "queue": (*QUEUE, None, *UNWRITABLE),
        "policy": POLICY,
        "park": (*QUEUE, *UNWRITABLE),
        "type": TEXT,
        "routing_key": (*TEXT, *UNWRITABLE),
        "headers": TABLE,
        "codec": (*ANY, 7, "json", None, type(Queue)),
        "keys": FUNCTION,
        "fingerprint": FUNCTION,
        "once": (*ANY, 7, "yes", None),
        "formerly": (*TEXT, None),
        "using": (*TEXT, None),
        "order_by": FUNCTION,
        "rate": (*ANY, True, [20], {}, -1, "often"),
        "breaker": (*ANY, 7, Breaker, ValueError),
        "timeout": NUMBER,
        "batch": (*ANY, 7, 100, True, Batch, [100]),
        "ack": (*CHOICE, None),
        "name": TEXT,
    },
}
NEEDED: Mapping[Callable[..., Any], Mapping[str, object]] = {
    Fixed: {"seconds": 1},
    Steps: {"seconds": [1]},
    Exponential: {"first": 1},
    Schedule: {"attempts": 3, "backoff": Fixed(1)},
    DeadLetter: {"exchange": "retry", "queue": "wait", "after": 5},
    WaitQueue: {"exchange": "retry", "queue": "wait"},
    Native: {"first": 1},
    Breaker: {"on": ValueError},
    Exchange: {"name": "main"},
    Queue: {"name": "work"},
    Broadcast: {"name": "news", "bindings": [Exchange("news", "fanout").bind()]},
    Batch: {"size": 100},
    handler: {"queue": "work"},
}


@pytest.mark.parametrize(
    ("made", "name"),
    [pytest.param(made, name, id=f"{made.__name__}-{name}") for made, names in WRONG.items() for name in names],
)
def test_an_argument_of_a_wrong_type_is_refused_in_one_sentence(made: Callable[..., Any], name: str) -> None:
    for value in WRONG[made][name]:
        given = {**NEEDED.get(made, {}), name: value}
        with isolated_handlers(), pytest.raises(ConfigurationError, match=r"[.?]$") as caught:
            made(**given)(lambda _message: None) if made is handler else made(**given)

        assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, ConfigurationError), value


@pytest.mark.parametrize("made", WRONG, ids=lambda made: made.__name__)
def test_wrong_values_are_tried_for_every_public_argument(made: Callable[..., Any]) -> None:
    assert set(WRONG[made]) == set(inspect.signature(made).parameters)


@pytest.mark.parametrize("made", WRONG, ids=lambda made: made.__name__)
def test_the_required_arguments_alone_are_accepted(made: Callable[..., Any]) -> None:
    made(**NEEDED.get(made, {}))


@pytest.mark.parametrize("name", ["a\tb", "\x1b[1m", "a\x7f", "a\x85", "a\u2028b", "a\u00adb"])
def test_a_control_character_that_breaks_nothing_is_taken_in_a_name(name: str) -> None:
    queue = Queue(name, bindings=[Exchange(name, "topic").bind(name)])

    assert (queue.name, queue.bindings[0].key, queue.bindings[0].source.name) == (name, name, name)


BACK_OFFS = "a back-off, such as Fixed(10), Steps([10, 60, 600]) or Exponential(10)"
CARRIERS = "a carrier, such as Ladder() or DeadLetter(exchange='retry', queue='wait', after=10)"
A_BINDING = "a list of bindings, such as [Exchange('events', 'topic').bind('order.#')]"


@pytest.mark.parametrize(
    ("made", "name", "value", "sentence"),
    [
        (RetryThenPark, "backoff", 10, f"RetryThenPark(backoff=…) takes {BACK_OFFS}, or None, not 10."),
        (RetryThenPark, "via", "DeadLetter", f"RetryThenPark(via=…) takes {CARRIERS}, not 'DeadLetter'."),
        (Queue, "bindings", "key", f"Queue(bindings=…) takes {A_BINDING}, not 'key'."),
        (
            Queue,
            "name",
            "work\0",
            "The queue name 'work\\x00' contains '\\x00', which PostgreSQL cannot store. Remove it.",
        ),
        (
            Exchange,
            "name",
            "e\n",
            "The exchange name 'e\\n' contains the line end '\\n', which RabbitMQ drops. Remove it.",
        ),
        (
            handler,
            "routing_key",
            "k\ud800",
            "The routing key of handler(routing_key=…) 'k\\ud800' contains '\\ud800', which UTF-8 cannot encode.",
        ),
    ],
)
def test_a_refused_argument_shows_the_right_form(
    made: Callable[..., Any], name: str, value: object, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made(**{**NEEDED.get(made, {}), name: value})

    assert str(caught.value) == sentence
