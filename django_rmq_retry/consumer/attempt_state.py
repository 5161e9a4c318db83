"""The state of a delivery, from its arrival to its settlement."""

import math
from dataclasses import dataclass

from django_rmq_retry.errors import NoKey, UndecodableBody
from django_rmq_retry.handlers.call import HandlerOutcome, OnceState
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.hooks import AroundAttempt
from django_rmq_retry.messages.message import DONE, Delivery, Settlement
from django_rmq_retry.policies.verdict import ACK, Verdict


@dataclass(slots=True, eq=False, repr=False)  # error trackers send the repr of local variables, and it has the data
class AttemptState:
    """The state of one delivery from its arrival to its settlement.

    The steps of the pipeline write it, the deadline that ends its handler, and ``Unacked`` between two attempts.
    """

    # Of the message, until it is settled.
    arrival: Delivery
    """The delivery as the source passed it in."""
    delivery: Delivery
    """The delivery as the handler receives it, once it is decoded."""
    earlier: int = 0
    """Attempts already made while the message was unacked."""
    waits_until: float = 0.0
    """The time of its next attempt, if the message went back to its queue and came again while it waited."""
    data: object = None
    key: str | None = None
    fresh: bool = False
    """True if the data were decoded to compute the ordering key and no handler has received them yet."""
    unreadable: UndecodableBody | NoKey | None = None
    once: OnceState | None = None
    hooked: AroundAttempt | None = None
    """The attempt as its hooks see it; None if there are none."""
    traceparent: str = ""
    """The W3C trace context of the attempt, if a hook has set one."""

    # Of one attempt, which may be interrupted and resumed. ``end_attempt`` resets these.
    outcome: HandlerOutcome | None = None
    """The handler's answer and error. Once it is set, no later failure may run the handler again."""
    error: BaseException | None = None
    """The error that led to the verdict."""
    settled: bool = False
    """True if the settlement is final: no later failure changes it."""
    outside_failures: int = 0
    """Failures outside the handler that the message itself may have caused."""

    # Of one attempt as well. The steps of the next one write these before they read them.
    began: float = 0.0
    leads: bool = True
    """False for a message of a batch behind its first one, which stands for their call of the handler."""
    without_headers: bool = False
    """True for a first arrival without headers: no count, stamp or condition has to be read."""
    subscription: Subscription | None = None
    number: int = 1
    crash: Verdict | None = None
    """The verdict on a message that may have killed its worker."""
    verdict: Verdict = ACK
    gates_left: tuple[int, Verdict] | None = None
    """The index of the first gate that has not seen the verdict, and the verdict after the gates before it."""
    settlement: Settlement = DONE

    def end_attempt(self) -> None:
        """Forget what belongs to the attempt that has ended: the message stays unacked for its next one."""
        self.outcome, self.error, self.settled, self.outside_failures = None, None, False, 0

    @property
    def deadline(self) -> float:
        """The monotonic time at which its handler should have ended."""
        timeout = None if self.subscription is None else self.subscription.timeout
        return math.inf if timeout is None or not self.leads else self.began + timeout
