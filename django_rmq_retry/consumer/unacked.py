"""Keeps the state of each message that stays unacked until its next attempt."""

from collections.abc import Callable, Collection
from weakref import WeakKeyDictionary

from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.messages.message import Delivery, Instruction, Settlement


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
        state.arrival = arrival.for_attempt(attempt=arrival.attempt, data=arrival.data, key=arrival.key)
        if state.delivery is arrival:
            state.delivery = state.arrival
        self._states[arrival], self._has_kept = state, True
        if arrival.queue in self._ordered:
            self._halted[arrival.queue] = arrival.body, arrival.routing_key, state.earlier, until

    def ended(self, state: AttemptState) -> Settlement:
        """Return the settlement, and keep the state of a message that stays unacked for its next attempt."""
        settlement = state.settlement
        if settlement.instruction is Instruction.KEEP:
            state.end_attempt()
            self.keep(state, state.arrival, until=self._clock() + settlement.hold)
        elif self._has_kept:
            self._states.pop(state.arrival, None)
        return settlement
