"""The features of each version of RabbitMQ, known before anything is declared."""

import pytest

from django_rmq_retry import Ladder, Native
from django_rmq_retry.topology import QueueDeclaration, Server
from django_rmq_retry.topology.plan import queue_refusal

OLD = Server(product="RabbitMQ", version=(3, 10, 8))
MIDDLE = Server(product="RabbitMQ", version=(4, 0, 5))
NEW = Server(product="RabbitMQ", version=(4, 3, 6))
STRANGE = Server(product="LavinMQ", version=(9, 9))
DELAYED = {"x-queue-type": "quorum", "x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000}


def refusal(server: Server, **arguments: object) -> str:
    return queue_refusal(server, QueueDeclaration(name="q", arguments=arguments)) or ""


@pytest.mark.parametrize("server", [OLD, MIDDLE, STRANGE])
def test_delayed_retry_is_refused_where_the_broker_would_ignore_it(server: Server) -> None:
    assert "needs RabbitMQ 4.3 or newer" in refusal(server, **DELAYED)
    assert str(server) in refusal(server, **DELAYED)


def test_delayed_retry_needs_a_quorum_queue_on_4_3_or_newer() -> None:
    assert refusal(NEW, **DELAYED) == ""
    assert "quorum queues only" in refusal(NEW, **{**DELAYED, "x-queue-type": "classic"})


def test_a_delivery_limit_of_minus_one_is_refused_before_4() -> None:
    asked = {"x-queue-type": "quorum", "x-delivery-limit": -1}

    assert "means 0 before RabbitMQ 4" in refusal(OLD, **asked)
    assert refusal(MIDDLE, **asked) == ""


@pytest.mark.parametrize(
    ("server", "arguments", "said"),
    [
        (OLD, {"x-queue-type": "classic", "x-delivery-limit": 5}, "x-delivery-limit is an argument of quorum"),
        (OLD, {"x-queue-type": "quorum", "x-max-priority": 5}, "x-max-priority is an argument of classic"),
        (NEW, {"x-queue-type": "classic", "x-consumer-timeout": 5}, "refused by classic queues from RabbitMQ 4.3"),
        (MIDDLE, {"x-queue-type": "classic", "x-consumer-timeout": 5}, ""),
        (NEW, {"x-queue-type": "quorum", "x-consumer-timeout": 5}, ""),
        (NEW, {"x-queue-type": "classic", "x-queue-version": 1}, "x-queue-version=1 is refused from RabbitMQ 4.3"),
        (MIDDLE, {"x-queue-type": "classic", "x-queue-version": 1}, ""),
        (NEW, {"x-message-ttl": 315_360_000_001}, "ten years"),
        (NEW, {"x-message-ttl": 315_360_000_000}, ""),
        (OLD, {}, ""),
    ],
)
def test_each_argument_is_checked_against_queue_type_and_version(
    server: Server, arguments: dict[str, object], said: str
) -> None:
    found = refusal(server, **arguments)

    assert said in found
    assert bool(said) is bool(found)


def test_a_carrier_names_the_version_it_needs_and_the_alternative() -> None:
    assert Native(10).version_refusal(OLD) == (
        "via=Native needs RabbitMQ 4.3 or newer; this is RabbitMQ 3.10.8. "
        "Use via=Ladder(), which every version supports."
    )
    assert Native(10).version_refusal(NEW) is None
    assert Ladder().version_refusal(OLD) is None
