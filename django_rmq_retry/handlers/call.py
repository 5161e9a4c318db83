"""The call of a handler: it refuses results that never ran, ends forked children and finds open transactions."""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

from django_rmq_retry import forks
from django_rmq_retry.arguments import plural
from django_rmq_retry.database_connections import OPEN_ADVICE, LeftOpen, in_transaction
from django_rmq_retry.errors import EffectsLost, NeverRan, RmqRetryError
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.policies.verdict import Verdict

log = logging.getLogger("django_rmq_retry")

Call: TypeAlias = Callable[[Any], Any]
"""Calls a handler with a message, or with the list of a batch."""
HandlerOutcome: TypeAlias = tuple[object, BaseException | None]
"""The handler's result, and its error."""

AWAIT = "Write await before the call that makes it, in an async def handler; or call async_to_sync(function)(…)."
RETURN = "Call a function without yield, or go through what it yields in a for loop."


class HandlerSkipped(Exception):
    """Raised by ``once`` if the handler must not be run; it carries the verdict that replaces the policy's."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.detail)


class BatchFailed(RmqRetryError):
    """Raise this in a handler with ``batch`` to name the messages that failed: ``BatchFailed({message: error})``.

    The others are done. If it was made inside a transaction, the others were rolled back with it, so they are run
    again, without the failed ones.
    """

    FORM = "BatchFailed takes a dict of the messages that failed, such as BatchFailed({message: error})"

    def __init__(self, errors: Mapping[Delivery, BaseException]) -> None:
        given: Any = errors
        if not isinstance(given, Mapping) or not given:
            raise ValueError(f"{BatchFailed.FORM}, of which there is at least one; not {type(given).__name__}.")
        for message, error in given.items():
            if not isinstance(message, Delivery) or not isinstance(error, BaseException):
                raise TypeError(f"{BatchFailed.FORM}, not {type(message).__name__} and {type(error).__name__}.")
        self.errors = dict(errors)
        self.rolls_back = in_transaction()
        """True if it was made inside a transaction, which it therefore rolls back."""
        super().__init__(f"{plural(len(self.errors), 'message')} of a batch failed.")

    def of(self, deliveries: Sequence[Delivery]) -> dict[Delivery, BaseException]:
        """Return the errors of these messages; empty if it names a message that is not among them."""
        by_token = {delivery.token: delivery for delivery in deliveries}
        if not all(message.token in by_token for message in self.errors):
            return {}
        return {by_token[message.token]: error for message, error in self.errors.items()}


class Unready(Exception):
    """Raised if no attempt is possible now: the message stays unacked, and no attempt is counted."""


@dataclass(slots=True)
class OnceState:
    """The facts that ``once`` keeps about a message that stays unacked, for its next attempt."""

    begun: bool = False
    """True if a run for the message has reached its commit."""
    losses: int = 0
    """The number of runs in a row that lost a database which was available again immediately."""


def guarded(function: Callable[[Any], Any], name: str) -> Call:
    """Return the function as a consumer calls it.

    It raises NeverRan for a result whose code has not run. A child that the function has forked ends here, inside any
    transaction of its parent, whether it returns or raises.
    """

    @wraps(function)
    def call(message: Any) -> Any:
        forked = forks.count
        try:
            answer = function(message)
        except BaseException as error:
            forks.end_since(forked, error)
            raise
        if forks.count != forked:
            forks.end_child(None)
        return answer if answer is None else _run_already(answer, name)

    return call


def awaited(function: Callable[[Any], Any], name: str) -> Call:
    """Return the same for an async function, to be called in the event loop, which ends the children of its tasks."""

    @wraps(function)
    async def call(message: Any) -> Any:
        answer = function(message)
        answer = await answer if inspect.isawaitable(answer) else answer
        return answer if answer is None else _run_already(answer, name)

    return call


def closed(outcome: HandlerOutcome, handler: str, found: Sequence[LeftOpen]) -> HandlerOutcome:
    """Return the outcome of a handler that may have left transactions open: then it is a failure."""
    for left in found:
        if outcome[1] is None:
            lost = EffectsLost(handler, left.database, what=f"it left {left.what}", advice=OPEN_ADVICE)
            outcome = None, lost
        else:
            log.warning(
                "Handler %s, or a function around it, left database %r with %s. It is rolled back",
                *(handler, left.database, left.what),
                extra={"event": "left_open", "handler": handler, "database": left.database},
            )
    return outcome


def alone(error: BaseException) -> BaseException:
    """Return the error that is alone in its group: when a task of a TaskGroup fails, policies name that error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def log_left_open(whose: str, found: Sequence[LeftOpen]) -> None:
    """Log the transactions that a function around a handler has left open."""
    for left in found:
        log.error("%s: %s", whose, left, extra={"event": "left_open", "database": left.database})


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return what a function takes, without its annotations: their names may exist for type checkers only."""
    if sys.version_info >= (3, 14):
        # From then on they are evaluated when they are read.
        from annotationlib import Format  # noqa: PLC0415 - new in 3.14

        whole = inspect.signature(function, annotation_format=Format.STRING)
    else:
        whole = inspect.signature(function)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in whole.parameters.values()]
    return whole.replace(parameters=bare, return_annotation=inspect.Signature.empty)


def never_ran(answer: object) -> bool:
    """True for a function's result whose code has not run: a generator, or what has to be awaited."""
    return inspect.isgenerator(answer) or inspect.isasyncgen(answer) or isinstance(answer, Awaitable)


def _run_already(answer: Any, name: str) -> Any:
    """Return the answer; raise NeverRan, and close it, if its code has not run."""
    if not never_ran(answer):
        return answer
    generating = inspect.isgenerator(answer) or inspect.isasyncgen(answer)
    if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
        with suppress(Exception):
            answer.close()
    raise NeverRan(name, kind=type(answer).__name__.replace("_", " ").strip(), advice=RETURN if generating else AWAIT)
