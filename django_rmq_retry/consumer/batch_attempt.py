"""The attempts of a batch: each message takes the steps by itself, and those that reach their handler share a call.

If the call fails, its messages are halved and called again until the message that fails stands alone. Only that one has
failed: its error, its attempt number and its record are those of the call that it had for itself.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn, TypeAlias

from django_rmq_retry.consumer.attempt import AttemptPipeline, is_dropped, skip_crashed
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.deadlines import HandlerAbandoned
from django_rmq_retry.handlers.call import BatchFailed, OnceState, Unready, alone, closed
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.policies.verdict import retry

Begin: TypeAlias = Callable[[Delivery], None]
Ended: TypeAlias = Callable[[Delivery, Settlement | BaseException], None]
End: TypeAlias = Callable[[AttemptState, BaseException | None], None]
LastStep: TypeAlias = Callable[[], None]
Group: TypeAlias = list[AttemptState]


class BatchPipeline(AttemptPipeline):
    """Makes the attempts of single messages and of batches."""

    def attempt_batch(self, arrivals: Sequence[Delivery], ended: Ended, begin: Begin | None = None) -> None:
        """Attempt messages of one handler in as few calls as possible.

        ``ended`` takes the settlement of each message as soon as it is known, or the exception that ``attempt`` would
        have raised for that message.
        """
        left = {self._unacked.state_of(arrival): arrival for arrival in arrivals}
        self._begin_call(list(left))
        self.in_flight.update(left)

        def end(state: AttemptState, error: BaseException | None = None) -> None:
            arrival = left.pop(state)
            self.in_flight.discard(state)
            if error is None:
                ended(arrival, self._unacked.ended(state))
            else:
                self._unacked.keep(state, arrival)
                ended(arrival, error)

        try:
            with self._surroundings.with_connections():
                waiting = [state for state in list(left) if self._reaches_handler(state, end)]
            if waiting:
                self._attempt_together(waiting, end, begin)
        except BaseException as error:  # noqa: BLE001 - it ends the attempt of each message that has not ended
            for state in list(left):
                end(state, error)

    def _reaches_handler(self, state: AttemptState, end: End) -> bool:
        """Take a message through the steps before its handler; end its attempt if it does not get there."""
        error: BaseException | None = None
        try:
            if state.outcome is not None and state.subscription is not None:
                self._conclude(state, state.subscription)
            else:
                subscription = self._identify(state)
                if subscription is not None:
                    self._decode(state, subscription)
                    if not self._turned_away(state, subscription):
                        if state.crash is not None and state.unreadable is None:
                            skip_crashed(state, state.crash)
                        return True
        except BaseException as raised:  # noqa: BLE001 - it must not cost the other messages of the batch
            error = raised
        end(state, error)
        return False

    def _attempt_together(self, waiting: Group, end: End, begin: Begin | None) -> None:
        """Run the handler, in as many calls as it takes, and conclude each attempt as soon as its message is over."""
        subscription = waiting[0].subscription
        if subscription is None:
            raise AssertionError("a message that reaches its handler has one")
        # Hooks are left in the opposite order in which they are entered, so the first message enters them last.
        entered = [(state, self._enter_hooks(state, subscription)) for state in reversed(waiting)]
        over: dict[AttemptState, LastStep] = {
            state: partial(self._conclude, state, subscription)
            for state in waiting
            if state.unreadable is not None or state.outcome is not None
        }
        groups = deque([[state for state in waiting if state not in over]])
        if begin is not None:
            for state in groups[0]:
                begin(state.arrival)
        again = False
        while entered:
            with self._surroundings.with_connections():
                if groups:
                    groups.extendleft(reversed(self._run_group(groups.popleft(), subscription, over, again=again)))
                    again = True
                while entered and entered[-1][0] in over:
                    state, hooks = entered.pop()
                    error = self._error_of(over.pop(state))
                    if hooks and self._hooks is not None and state.hooked is not None:
                        if error is not None:
                            state.hooked.verdict, state.hooked.error = None, error
                        self._hooks.leave(hooks, roll_back_left_open=self._surroundings.roll_back_left_open)
                    end(state, error)

    def _run_group(
        self, group: Group, subscription: Subscription, over: dict[AttemptState, LastStep], *, again: bool
    ) -> list[Group]:
        """Call the handler once with these messages; return those that are to be called again, in their groups."""
        if again:
            group = [state for state in group if self._may_run_again(state, subscription, over)]
        self._begin_call(group)
        if len(group) < 2:  # noqa: PLR2004 - a batch has two or more
            for state in group:
                over[state] = self._run_alone(state, subscription)
            return []
        apart, error = self._call(group, subscription)
        if isinstance(error, HandlerAbandoned):
            raise error
        if isinstance(error, Unready):
            over.update({state: partial(self._stay, state, subscription, error) for state in group})
            return []
        left = self._divide(group, subscription, apart, error)
        decided = set(group).difference(*left)
        over.update({state: partial(self._conclude, state, subscription) for state in decided})
        return left

    def _divide(
        self, group: Group, subscription: Subscription, apart: Collection[int], error: BaseException | None
    ) -> list[Group]:
        """Set the outcomes that the call has decided; return the other messages, in groups to be called again."""
        named = error.of([state.delivery for state in group]) if isinstance(error, BatchFailed) else {}
        if error is not None and not named:
            half = len(group) // 2
            return [group[:half], group[half:]]
        undone = isinstance(error, BatchFailed) and (error.rolls_back or bool(subscription.once))
        left: Group = []
        for place, state in enumerate(group):
            if state.delivery in named:
                state.outcome = None, named[state.delivery]
            elif undone or place in apart:
                left.append(state)
            else:
                state.outcome = None, None
        return [left] if undone else [[state] for state in left]

    def _begin_call(self, group: Group) -> None:
        now = self._surroundings.clock()
        for place, state in enumerate(group):
            state.began, state.leads = now, place == 0

    def _may_run_again(
        self, state: AttemptState, subscription: Subscription, over: dict[AttemptState, LastStep]
    ) -> bool:
        """Prepare a message for another call: the last one may have changed its data or opened its breaker."""
        try:
            if is_dropped(state) or self._turned_away(state, subscription):
                over[state] = _nothing
                return False
            delivery = state.delivery
            data = decoded(delivery, subscription.codec, subscription.limits)
            state.delivery = delivery.for_attempt(attempt=delivery.attempt, data=data, key=delivery.key)
        except BaseException as error:  # noqa: BLE001 - it must not cost the other messages of the batch
            over[state] = partial(_throw, error)
            return False
        return True

    def _run_alone(self, state: AttemptState, subscription: Subscription) -> LastStep:
        try:
            self._run(state, subscription, None)
        except HandlerAbandoned:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again as its attempt ends
            return partial(_throw, error)
        return partial(self._conclude, state, subscription)

    def _call(self, group: Group, subscription: Subscription) -> tuple[Collection[int], BaseException | None]:
        """Call the handler; return the places of the messages that ``once`` has left out, and the error of the call."""
        apart: Collection[int] = ()
        error: BaseException | None = None
        try:
            if subscription.once:
                for state in group:
                    state.once = state.once or OnceState()
                messages = [(state.delivery, state.once or OnceState()) for state in group]
                apart = self._surroundings.once_batch(subscription, messages)
            elif subscription.run_batch is not None:
                subscription.run_batch([state.delivery for state in group])
        except BaseException as raised:  # noqa: BLE001 - SystemExit of one handler must not end the worker
            error = alone(raised)
        _, error = closed((None, error), subscription.name, self._surroundings.roll_back_left_open())
        return apart, error

    def _stay(self, state: AttemptState, subscription: Subscription, error: Unready) -> NoReturn:
        """Leave the gates with a message whose handler cannot run now, and keep it unacked."""
        if subscription.gated:
            self._leave_gates(state, subscription, retry(0.0, detail=str(error), counted=False), error)
        raise error

    def _error_of(self, last_step: LastStep) -> BaseException | None:
        try:
            last_step()
        except BaseException as error:  # noqa: BLE001 - it ends the attempt of this message alone
            return error
        return None


def _nothing() -> None:
    """Do nothing: the message is settled, or comes again."""


def _throw(error: BaseException) -> NoReturn:
    raise error
