"""What an attempt needs from outside: clocks, random numbers, the database, journals, gates and the inbox."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn

from django_rmq_retry.database_connections import LeftOpen
from django_rmq_retry.handlers.call import OnceState, Unready
from django_rmq_retry.handlers.contracts import Gate, Journal, Kept
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.hooks import Hooks
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.policies.verdict import Verdict


def machine_fails(error: BaseException) -> bool:
    """True if an error comes from the machine or the network: the message did not cause it."""
    return isinstance(error, Unready | OSError)


def no_inbox(subscription: Subscription, *_messages: object) -> NoReturn:
    """Raise an error: without an inbox, a handler with ``once`` must not run as if there were one."""
    raise RuntimeError(f"Handler {subscription.name} has once=…, and this process has no inbox.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of the attempts of one process, complete when constructed; the defaults do nothing."""

    with_connections: Callable[[], AbstractContextManager[object]]
    """Entered around each attempt, which gets fresh connections to the database."""
    journals: Sequence[Journal]
    clock: Callable[[], float]
    """Seconds on a monotonic clock."""
    now_ms: Callable[[], int]
    """Milliseconds since the epoch."""
    chance: Callable[[], float]
    check: Callable[[Message], None] = lambda _message: None
    """Raises if the copy cannot be written to the broker."""
    away: Callable[[BaseException], bool] = machine_fails
    """True if a failure outside the handler would hit any other message too: then no message is given up for it."""
    crash_limit: int | None = 5
    """Number of returns by crashed workers after which a message is parked without another attempt."""
    withheld: Callable[[Delivery], Verdict | None] = lambda _delivery: None
    """Returns the verdict on a copy that must not be run, because its message was parked or handled meanwhile."""
    reply_to: Sequence[str] = ("amq.rabbitmq.reply-to.*", "amq.gen-*")
    """Patterns of the queues that may get answers: a sender must not choose where the consumer writes."""
    refused: Callable[[str], None] = lambda _address: None
    """Called with the address of each answer that the settings do not allow."""
    acked: Callable[[Subscription, float, bytes], None] | None = None
    """Takes each successful first attempt that no journal wants: handler, seconds, and encoded properties."""
    unparked: Callable[[Delivery], None] | None = None
    """Takes each message that was noted as parked, but was not: the broker delivers it again."""
    keep: Callable[[Kept], None] = lambda _kept: None
    """Takes the rows that are to be stored of attempts."""
    hooks: Hooks | None = None
    """Entered around each attempt: the setting AROUND. None if it names no hook."""
    gates: Sequence[Gate] = ()
    """Entered in their order before each run of a gated subscription."""
    key_timeout: float | None = None
    """Seconds after which the computation of an ordering key is ended; None without a limit, such as in tests."""
    interrupted: Callable[[], None] = lambda: None
    """Called in the thread of a handler that its deadline has interrupted: database connections may be in any state."""
    roll_back_left_open: Callable[[], Sequence[LeftOpen]] = lambda: ()
    """Rolls back the transactions open in this thread, and returns what was open; a test has its own transactions."""
    once: Callable[[Subscription, Delivery, OnceState], object] = no_inbox
    """Runs the handlers with ``once``; raises their exceptions, HandlerSkipped or Unready."""
    once_batch: Callable[[Subscription, Sequence[tuple[Delivery, OnceState]]], Collection[int]] = no_inbox
    """Runs a batch of them in one transaction; returns the places of the messages that ``once`` has to run alone."""
