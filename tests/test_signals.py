from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from django_rmq_retry import Delivery, Queue, StopTheLine, signals
from django_rmq_retry.consumer import events
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Reason
from django_rmq_retry.policies import ACK, Verdict, halt, park, retry
from tests.consumer.attempts import finished

Heard = list[tuple[str, str]]
LEDGER = Subscription(
    name="ledger.post", run=lambda _: None, queue=Queue("ledger.post"), policy=StopTheLine(), park="x"
)
NAMES = {id(getattr(signals, name)): name for name in ("attempted", "parked", "halted", "resumed")}


def attempt(verdict: Verdict, *, subscription: Subscription | None = LEDGER) -> Any:
    delivery = Delivery(queue="ledger.post", body=b"{}")
    return finished(verdict, delivery, handler=subscription)


@pytest.fixture
def connect() -> Iterator[Callable[[Signal, Callable[..., Any]], None]]:
    """Connect receivers for the time of the test."""
    connected: list[tuple[Signal, Callable[..., Any]]] = []

    def connect(signal: Signal, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def heard(connect: Callable[[Signal, Callable[..., Any]], None]) -> Heard:
    """What was sent: the signal's name and the handler's."""
    found: Heard = []
    for signal in events.ALL:
        connect(signal, lambda signal, handler, **_: found.append((NAMES[id(signal)], handler)))
    return found


def test_without_receivers_no_observer_is_registered() -> None:
    assert events.observers() == ()


def test_a_success_sends_the_attempted_signal(heard: Heard) -> None:
    (announcer,) = events.observers()

    announcer(attempt(ACK))

    assert heard == [("attempted", "ledger.post")]


def test_a_parked_message_sends_the_attempted_and_parked_signals(heard: Heard) -> None:
    events.Announcer()(attempt(park(Reason.PERMANENT, "closed")))

    assert heard == [("attempted", "ledger.post"), ("parked", "ledger.post")]


def test_a_message_without_a_handler_sends_only_the_parked_signal(heard: Heard) -> None:
    events.Announcer()(attempt(park(Reason.UNHANDLED, "no_handler"), subscription=None))

    assert heard == [("parked", "")]


def test_a_halted_queue_sends_the_resumed_signal_once(heard: Heard) -> None:
    announcer = events.Announcer()

    for verdict in (halt(10), halt(20), ACK, ACK):
        announcer(attempt(verdict))

    told = [name for name, _ in heard if name != "attempted"]

    assert told == ["halted", "halted", "resumed"]


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_a_failing_signal_receiver_does_not_affect_the_consumer(
    connect: Callable[[Signal, Callable[..., Any]], None], raised: type[BaseException]
) -> None:
    def fail(**_: object) -> None:
        raise raised

    connect(signals.attempted, fail)

    events.Announcer()(attempt(retry(10)))
