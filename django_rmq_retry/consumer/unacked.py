"""The state of a delivery, and the memory of those that stay unacked for their next attempt."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from django_rmq_retry.errors import NoKey, UndecodableBody
from django_rmq_retry.handlers.call import HandlerOutcome, OnceState
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.hooks import AroundAttempt
from django_rmq_retry.messages.message import DONE, Delivery, Instruction, Settlement
from django_rmq_retry.policies.verdict import ACK, Verdict


@dataclass(slots=True, eq=False, repr=False)  # error trackers send the repr of local variables, and it has the data
class AttemptState:
    """The state of one delivery from its arrival to its settlement.

    The steps of the pipeline write it, the deadline that ends its handler, and ``Unacked`` between two attempts.
    """

    arrival: Delivery
    """The delivery as the source passed it in."""
    delivery: Delivery
    """The delivery as the handler receives it, once it is decoded."""
    earlier: int = 0
    """Attempts already made while the message was unacked."""
    waits_until: float = 0.0
    """The time of its next attempt, if the message went back to its queue and came again while it waited."""
    began: float = 0.0
    without_headers: bool = False
    """True for a first arrival without headers: no count, stamp or condition has to be read."""
    subscription: Subscription | None = None
    number: int = 1
    data: object = None
    key: str | None = None
    fresh: bool = False
    """True if the data were decoded to compute the ordering key and no handler has received them yet."""
    crash: Verdict | None = None
    """The verdict on a message that may have killed its worker."""
    unreadable: UndecodableBody | NoKey | None = None
    once: OnceState | None = None
    outcome: HandlerOutcome | None = None
    """The handler's answer and error. Once it is set, no later failure may run the handler again."""
    error: BaseException | None = None
    """The error that led to the verdict."""
    verdict: Verdict = ACK
    gates_left: tuple[int, Verdict] | None = None
    """The index of the first gate that has not seen the verdict, and the verdict after the gates before it."""
    settlement: Settlement = DONE
    settled: bool = False
    """True if the settlement is final: no later failure changes it."""
    outside_failures: int = 0
    """Failures outside the handler that the message itself may have caused."""
    around: AroundAttempt | None = None
    """The attempt as its hooks see it; None if there are none."""
    traceparent: str = ""
    """The W3C trace context of the attempt, if a hook has set one."""

    @property
    def deadline(self) -> float:
        """The monotonic time at which its handler should have ended."""
        timeout = None if self.subscription is None else self.subscription.timeout
        return math.inf if timeout is None else self.began + timeout


class Unacked:
    """The states of the messages that stay unacked. Shared by all worker threads."""

    def __init__(self, ordered: Collection[str], clock: Callable[[], float]) -> None:
        self._ordered = ordered
        self._clock = clock
        self._states: WeakKeyDictionary[Delivery, AttemptState] = WeakKeyDictionary()
        self._has_kept = False  # A fast path: false as long as no message was kept, so the dictionary is empty
        self._halted: dict[str, tuple[bytes, str, int, float]] = {}
        """By queue, the body, key, attempts and next attempt's time of the halted message at its head.

        It may arrive again as a new delivery.
        """

    def state_of(self, arrival: Delivery) -> AttemptState:
        """Return the state of a message that stayed unacked, or a new state."""
        state = self._states.get(arrival) if self._has_kept else None
        if state is not None:
            state.arrival = arrival
            return state
        state = AttemptState(arrival, arrival)
        if self._halted:
            body, key, attempts, until = self._halted.pop(arrival.queue, (b"", "", 0, 0.0))
            if arrival.redelivered and (body, key) == (arrival.body, arrival.routing_key):
                state.earlier, state.waits_until = attempts, until
        return state

    def keep(self, state: AttemptState, arrival: Delivery, *, until: float = 0.0) -> None:
        """Keep the state as long as the consumer has the delivery: it may return to its queue instead."""
        # A state that refers to its delivery would never be dropped, so it refers to a copy meanwhile.
        state.arrival = arrival.ready(attempt=arrival.attempt, data=arrival.data, key=arrival.key)
        if state.delivery is arrival:
            state.delivery = state.arrival
        self._states[arrival], self._has_kept = state, True
        if arrival.queue in self._ordered:
            self._halted[arrival.queue] = arrival.body, arrival.routing_key, state.earlier, until

    def ended(self, state: AttemptState) -> Settlement:
        """Return the settlement, and keep the state of a message that stays unacked for its next attempt."""
        settlement = state.settlement
        if settlement.instruction is Instruction.KEEP:
            state.outcome, state.error, state.settled, state.outside_failures = None, None, False, 0
            self.keep(state, state.arrival, until=self._clock() + settlement.hold)
        elif self._has_kept:
            self._states.pop(state.arrival, None)
        return settlement
