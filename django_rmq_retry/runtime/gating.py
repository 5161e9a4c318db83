"""The opening that is asked before a handler runs and told how it ended: for order, switches and rates."""

from collections.abc import Sequence
from typing import Protocol

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.verdict import Verdict


class Gate(Protocol):
    """Called on the worker's thread, inside ``around``, for subscriptions that are ``gated``, and for no other."""

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        """How the delivery is settled instead of being run now, which is no attempt; None where it may run.

        What is raised keeps the message in hand, and no attempt is counted.
        """
        ...

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Told of every run that was let in, before the journal and the broker are; the verdict that counts.

        A run that could not begin is told as a retry that is not counted; its message stays in hand.

        What is raised keeps the message in hand, as above.
        """
        ...


class Gates:
    """Several as one: passed and left in their order, so that each is told the verdict of those before it."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = tuple(gates)

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        delivery.left = None
        for gate in self._gates:
            settlement = gate.enter(delivery, subscription)
            if settlement is not None:
                return settlement
        return None

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        heard, verdict = delivery.left or (0, verdict)
        for number, gate in enumerate(self._gates[heard:], heard):
            try:
                verdict = gate.leave(delivery, subscription, verdict, error)
            except BaseException:
                # Those before it have heard: told once more, they would count the run twice.
                delivery.left = number, verdict
                raise
        delivery.left = None
        return verdict
