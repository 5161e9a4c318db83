"""Exchanges, queues and bindings as a project writes them down."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Broadcast, Exchange, Queue
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.properties import milliseconds
from django_rmq_retry.topology import Binding
from django_rmq_retry.topology.declarations import check_name, matches

WORDS = st.sampled_from(["a", "b", "c", "", "a+", "[a]", "\\", "é"])
KEYS = st.lists(WORDS, max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#", "", "a+", "\\"]), max_size=5).map(".".join)


def routed(pattern: list[str], words: list[str]) -> bool:
    """The rule as RabbitMQ writes it (rabbit_exchange_type_topic:trie_match), word by word."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(routed(rest, words[taken:]) for taken in range(len(words) + 1))
    return bool(words) and first in {"*", words[0]} and routed(rest, words[1:])


def split(key: str) -> list[str]:
    return key.split(".") if key else []


@given(PATTERNS, KEYS)
@example("a.#", "a")
@example("a.#.#", "a")
@example("#.z", "z")
@example("a.#.z", "a.z")
@example("*", "")
@example("#", "")
@example("*.*", ".")
@example("", "")
def test_patterns_match_as_a_topic_exchange_would(pattern: str, key: str) -> None:
    assert matches(pattern, key) is routed(split(pattern), split(key))


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("a.*.c", ["a.b.c", "a..c", "a.*.c"], ["a.c", "a.b.b.c", "a.b.cc", "xa.b.c"]),
        ("#", ["", "a", "a.b.c", "a.\n.c"], []),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["ab", "b.a", ""]),
        ("#.z", ["z", "a.z", "a.b.z"], ["az", "z.a", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["az", "a.zz", "a"]),
        ("pay.cash", ["pay.cash"], ["payxcash", "pay.cash.x", "PAY.CASH"]),
        ("pay+", ["pay+"], ["payy"]),
    ],
)
def test_each_pattern_matches_the_listed_keys(pattern: str, taken: list[str], left: list[str]) -> None:
    assert [key for key in taken if not matches(pattern, key)] == []
    assert [key for key in left if matches(pattern, key)] == []


def test_a_hostile_pattern_is_matched_at_once() -> None:
    assert not matches(".".join(["#", "a"] * 60), ".".join(["a"] * 120 + ["b"]))


@pytest.mark.parametrize(
    ("kind", "bound", "key", "passes"),
    [
        ("direct", "a.*", "a.b", False),
        ("direct", "a", "a", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a", False),
        ("fanout", "", "anything", True),
        ("headers", "", "anything", True),
        ("x-consistent-hash", "1", "anything", True),
    ],
)
def test_a_binding_matches_the_keys_of_its_exchange_type(kind: str, bound: str, key: str, passes: bool) -> None:
    assert Exchange("e", kind).bind(bound).takes(key) is passes


def test_a_headers_exchange_is_bound_by_headers() -> None:
    binding = Exchange("e", "headers").bind(headers={"country": "NO"}, match="any")

    assert binding == Binding(source=Exchange("e", "headers"), arguments={"x-match": "any", "country": "NO"})


def test_a_headers_exchange_is_not_bound_by_a_key_alone() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Exchange("e", "headers").bind("order.#")

    assert str(caught.value) == (
        "Exchange 'e' has the type 'headers', which ignores the key 'order.#': the binding would match every message. "
        "Use bind(headers={…}), or bind() for all of them."
    )


def test_a_headers_exchange_is_bound_for_every_message_by_an_empty_bind() -> None:
    headers = Exchange("e", "headers")

    assert headers.bind() == Binding(source=headers)
    assert headers.bind("k", headers={}) == Binding(source=headers, key="k", arguments={"x-match": "all"})


@pytest.mark.parametrize("name", ["a b", "zahlungen.größe", "платежи", "支付", "a\u200bb", "a\u00a0b", "😀"])
def test_names_of_any_script_are_taken(name: str) -> None:
    assert (Queue(name).name, Exchange(name).bind(name).key) == (name, name)


def test_other_exchanges_cannot_be_bound_by_headers() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Exchange("e", "topic").bind(headers={"country": "NO"})

    assert str(caught.value) == "Exchange 'e' has the type 'topic'; bind(headers=…) needs the type 'headers'."


def test_a_queue_is_quorum_with_a_high_delivery_limit_by_default() -> None:
    assert Queue("payments").plain_arguments() == {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"type": "classic"}, {"x-queue-type": "classic"}),
        ({"type": None}, {}),
        ({"type": None, "delivery_limit": 5}, {}),
        ({"delivery_limit": None}, {"x-queue-type": "quorum"}),
        ({"type": "classic", "max_priority": 9}, {"x-queue-type": "classic", "x-max-priority": 9}),
        ({"type": None, "max_length": 5}, {"x-max-length": 5, "x-overflow": "reject-publish"}),
        ({"type": None, "max_length": 0}, {"x-max-length": 0, "x-overflow": "reject-publish"}),
        (
            {"type": None, "max_bytes": 500, "overflow": "drop-head"},
            {"x-max-length-bytes": 500, "x-overflow": "drop-head"},
        ),
        ({"type": None, "message_ttl": 1.5}, {"x-message-ttl": 1500}),
        ({"type": None, "single_active_consumer": True}, {"x-single-active-consumer": True}),
    ],
)
def test_every_queue_option_becomes_an_argument(options: dict[str, Any], arguments: dict[str, object]) -> None:
    assert Queue("payments", **options).plain_arguments() == arguments


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Queue("q", max_priority=5),
            ("Queue 'q' has max_priority=5, which quorum queues refuse. Use type='classic', or remove max_priority."),
        ),
        (
            lambda: Queue("q", auto_delete=True),
            (
                "Queue 'q' is transient (durable=False, exclusive or auto_delete), and quorum queues are not. "
                "Use type='classic'."
            ),
        ),
        (
            lambda: Queue("q", type="classic", exclusive=True, existing=True),
            "Queue 'q' is transient, so its consumer declares it. Remove existing=True.",
        ),
        (
            lambda: Broadcast("q"),
            (
                "Broadcast('q') has no binding, and the broker chooses the names of its queues, so no publisher can "
                "reach them. "
                "Bind it to an exchange: bindings=[Exchange('prices', 'fanout').bind()]."
            ),
        ),
        (lambda: Queue("q", message_ttl=0), "Queue 'q': message_ttl must be above 0 s, not 0."),
        (lambda: Queue("q", expired=True), "Queue 'q': expired is 'park' or 'drop', not True."),  # type: ignore[arg-type]
        (
            lambda: Queue("q", overflow="drop_head"),  # type: ignore[arg-type]
            "Queue 'q': overflow is 'reject-publish' or 'drop-head', not 'drop_head'.",
        ),
        (
            lambda: Queue("q", delivery_limit=-1),
            (
                "Queue 'q': delivery_limit=-1 means 0 on RabbitMQ 3 (removed at the first requeue) and 'none' on 4. "
                "Use the default (1000000), which is never reached on any version."
            ),
        ),
        (lambda: Queue(""), "The queue's name must be a string that is not empty, not ''."),
        (
            lambda: Queue("amq.gen-1"),
            "The queue name 'amq.gen-1' starts with 'amq.', which is reserved for the broker.",
        ),
        (lambda: Queue("é" * 128), f"The queue name {'é' * 40!r}… is longer than 255 bytes."),
        (lambda: Exchange("", "topic"), "The default exchange has the type 'direct', not 'topic'."),
        (lambda: Exchange("e" * 256), f"The exchange name {'e' * 40!r}… is longer than 255 bytes."),
        (lambda: check_name("exchange", None), "The exchange's name must be a string that is not empty, not None."),
    ],
)
def test_an_invalid_queue_or_binding_is_refused_by_the_constructor(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 0), (0.0001, 1), (1, 1000), (1.0001, 1001), (0.1 + 0.2, 300), (12.3456, 12346)]
)
def test_milliseconds_are_rounded_up(seconds: float, expected: int) -> None:
    assert milliseconds(seconds) == expected


@given(st.integers(0, 315_360_000_000))
def test_whole_milliseconds_are_converted_exactly(value: int) -> None:
    assert value <= milliseconds(value / 1000) <= value + 1


def test_a_real_broker_routes_patterns_the_same_way(amqp: BlockingChannel) -> None:
    choice = random.Random(3)
    words = ["a", "b", "*", "#", ""]
    written = {".".join(choice.choices(words, k=size)) for size in (0, 1, 1, 2, 2, 3, 3, 3, 4, 4) * 5}
    # RabbitMQ 4.3 refuses a binding key with more than two of them.
    patterns = sorted(pattern for pattern in written if pattern.count("#") <= 2)
    keys = sorted({".".join(choice.choices(words, k=size)) for size in (0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5) * 5})
    amqp.confirm_delivery()
    amqp.exchange_declare("events", "topic")
    for pattern in patterns:
        amqp.queue_declare(f"q:{pattern}", exclusive=True)
        amqp.queue_bind(f"q:{pattern}", "events", pattern)
    for key in keys:
        amqp.basic_publish("events", key, key.encode())

    for pattern in patterns:
        counted = amqp.queue_declare(f"q:{pattern}", passive=True).method.message_count
        routed_here = [(amqp.basic_get(f"q:{pattern}", auto_ack=True)[2] or b"").decode() for _ in range(counted)]
        assert sorted(routed_here) == [key for key in keys if matches(pattern, key)]
