"""The last acks of a lost connection: what they acknowledged was handled, and the broker may deliver it once more.

The broker has at most the prefetch of a line unsettled, so a line keeps that many of its last acks. If it was not
closed in good order, those of its last minute are noted as attempts: a later handling of one is then known to be the
second.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from django_rmq_retry.amqp.contracts import LostLine
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.messages.message import Delivery, message_id

log = logging.getLogger("django_rmq_retry")

LARGEST_KEPT_BODY = 64 * 1024
"""Largest body, in bytes, that is kept for its identity, which is computed at once for a larger one."""


class AckedMessage(NamedTuple):
    """A message that was handled at its first attempts here, and the monotonic times of the last one."""

    ended: float
    arrival: Delivery
    subscription: Subscription
    began: float
    number: int
    identity: str
    """Empty if it is still to be computed."""


def remember(state: AttemptState, subscription: Subscription, now: float) -> None:
    """Keep a message that was handled, with the line that acknowledges it."""
    arrival = state.arrival
    line = arrival.token[0]  # the property would cost more
    if line is None:
        return
    identity = ""
    if len(arrival.body) > LARGEST_KEPT_BODY:
        identity = attempt_identity(arrival.queue, message_id(arrival), arrival.body)
        arrival = replace(arrival, body=b"")
    # Plain, in the order of an AckedMessage: each message needs one.
    line.last_acks.append((now, arrival, subscription, state.began, state.number, identity))


class LastAcks:
    """Tells of the messages whose acks were lost. A tick later: a thread may be just about to remember one."""

    def __init__(self, tell: Callable[[Sequence[AckedMessage]], None]) -> None:
        self._tell = tell
        self._lost: Sequence[LostLine] = ()

    def look(self, lost: Sequence[LostLine]) -> None:
        before, self._lost = self._lost, lost
        self._report(before)

    def end(self, lost: Iterable[LostLine]) -> None:
        self._report([*self._lost, *lost])
        self._lost = ()

    def _report(self, lines: Iterable[LostLine]) -> None:
        for line in lines:
            messages = [AckedMessage(*one) for one in line.unsure()]
            if messages:
                log.warning(
                    "Queue %r: its connection was lost, and with it perhaps the acks of the last messages that were "
                    "handled here (%s since %s): RabbitMQ then delivers them again",
                    *(line.queue, len(messages), _time(min(one.ended for one in messages))),
                    extra={"event": "acks_lost", "queue": line.queue},
                )
                self._tell(messages)


def _time(monotonic: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time.time() - time.monotonic() + monotonic))
