"""Publishes the copies of one slice of a requeue run."""

import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django_rmq_retry.amqp.contracts import Cause, PublishResult, unanswered, unwritable
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import HeadersTooLarge
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.parked_copy import Original, requeued
from django_rmq_retry.models import ItemReason, MessageVersion, ParkedMessage, RequeueRun
from django_rmq_retry.parked.claims import Claim, ClaimResult, Copy
from django_rmq_retry.parked.operators import refusal, user_of
from django_rmq_retry.publishing import broker_connections

COPY_GRACE_SECONDS = 2.0
"""Seconds after its deadline for which a publish's result is waited for."""
QUIET_SECONDS = 1.0
"""Seconds without any result after which a driver looks why there is none."""


def copies_of(run: RequeueRun) -> Copy:
    """Return what makes the copies of one slice: the accounts that are checked are read once for all its messages.

    The permissions of a second person who approved the run are checked as well. An operator who uses commands has
    access to the server anyway, and is not checked.
    """
    checked = [run.by_user_id] if run.source == "admin" else []
    checked += [run.approved_by_user_id] if run.approved_by else []
    return partial(_copy, run, [user_of(one) for one in checked])


def _copy(run: RequeueRun, accounts: Sequence[Any], message: ParkedMessage) -> Message | ItemReason:
    """Return the copy of a message; None among the accounts is one that no longer exists."""
    target = run.target or message.queue
    if not target:
        return ItemReason.NO_QUEUE
    if None in accounts:
        return ItemReason.ACCOUNT_GONE
    if any(refusal(one, "requeue", message) for one in accounts):
        return ItemReason.REFUSED
    original = contents(message)
    ticket = Ticket(record=message.pk, cycle=message.cycle + 1)
    signed = ticket.signed(message_identity(target, original.properties.message_id, original.body))
    copy = requeued(original, queue=target, ticket=signed, traceparent=message.traceparent)
    return copy if _writable(copy) else ItemReason.UNWRITABLE


def contents(message: ParkedMessage) -> Original:
    """Return the contents that a requeue sends: the latest edited version, or the original."""
    source: ParkedMessage | MessageVersion = message
    if message.version > 1:
        source = MessageVersion.objects.get(message=message, number=message.version)
    return Original(
        body=bytes(source.body),
        raw=bytes(source.properties),
        exchange=message.exchange,
        routing_key=message.routing_key,
        message_id=message.message_id,
        unacked=message.unacked,
    )


def publish(
    claims: Sequence[Claim],
    *,
    timeout: float,
    quiet: Callable[[], None] = lambda: None,
) -> list[ClaimResult]:
    """Publish the copies and return a result for each; ``quiet`` is called each second in which there is none."""
    ended: queue.SimpleQueue[ClaimResult] = queue.SimpleQueue()
    publisher = broker_connections.connections.publisher

    def end(claim: Claim, result: PublishResult) -> None:
        ended.put(ClaimResult(claim=claim, result=result))

    for claim in claims:
        try:
            publisher.send(claim.copy, partial(end, claim), timeout=timeout)
        except (TypeError, ValueError) as error:
            end(claim, unwritable(str(error)))
    deadline = time.monotonic() + timeout + COPY_GRACE_SECONDS
    results: dict[int, ClaimResult] = {}
    while len(results) < len(claims):
        left = max(0.0, deadline - time.monotonic())
        try:
            result = ended.get(timeout=min(left, QUIET_SECONDS))
        except queue.Empty:
            if left <= QUIET_SECONDS:
                break
            quiet()
            continue
        results.setdefault(result.claim.item, result)
    # The I/O thread has stopped answering, so these messages may or may not have been sent.
    lost = unanswered(Cause.IO_STOPPED, "the I/O thread does not answer")
    return [results.get(one.item) or ClaimResult(claim=one, result=lost) for one in claims]


def _writable(copy: Message) -> bool:
    try:
        check_writable(copy)
    except (HeadersTooLarge, ValueError):
        return False
    return True


def timeout_for(seconds: float | None) -> float:
    """Return the publish timeout for a driver that runs for ``seconds``; it is well within the lifetime of a claim."""
    usual = settings().publish_timeout
    return usual if seconds is None else min(usual, max(1.0, seconds))
