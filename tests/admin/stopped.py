"""Makes what is stopped: a message in the outbox, a key on which one has failed, a queue whose breaker is open."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_rmq_retry.breakers.table import BreakerTable
from django_rmq_retry.models import BlockedKey, BlockedMessage, OutboxMessage, ParkedMessage, QueueControl
from django_rmq_retry.policies import Circuit
from tests.admin import made


def outgoing(*, failed: bool) -> OutboxMessage:
    now = timezone.now()
    told: dict[str, Any] = {"attempts": 1, "error": "GatewayTimeout", "failed_at": now} if failed else {}
    about = {"message_id": "9f3c-1", "exchange": "payments", "routing_key": "transfer", "order_key": "PAY-1"}
    return OutboxMessage.objects.create(created_at=now, due_at=now, body=b"1", properties=b"", **about, **told)


def blocked(first: ParkedMessage, *, waiting: int, parked: bool = True) -> BlockedKey:
    about = {"handler": "transfer", "key": "PAY-1", "queue": first.queue, "blocker": first.message_id}
    known = BlockedKey.objects.create(
        digest=first.identity, identity=first.identity, name="1", parked=parked, since=timezone.now(), **about
    )
    for number in range(waiting):
        BlockedMessage.objects.create(
            block=known,
            shown="9f3c-2",
            digest=f"{number}",
            body=b"1",
            properties=made.properties(),
            waiting_since=known.since,
        )
    BlockedKey.objects.filter(pk=known.pk).update(waiting=waiting)
    return known


def halted(queue: str) -> QueueControl:
    """A strict-order queue whose first message fails, as a consumer has just reported."""
    now = timezone.now()
    first = {"halted_message": "9f3c-1", "halted_key": "PAY-1", "halted_error": "NotCovered: ACC-7"}
    return QueueControl.objects.create(
        queue=queue, halted_at=now - timedelta(minutes=9), halted_seen_at=now, halted_attempt=14, **first
    )


def trip(
    queue: str,
    *,
    handler: str = "charge",
    kind: str = "BankDown",
    cause: str = "BankDown: timeout",
    failed: int = 0,
    wait: float = 60,
    by: str = "host:1",
) -> None:
    """Open a queue's breaker, as a process does whose handlers fail; its first messages failed again so many times."""
    now = timezone.now().timestamp()
    circuit = Circuit().trip(handler=handler, kind=kind, cause=cause, now=now, wait=wait)
    for _ in range(failed):
        circuit = circuit.fail(cause=cause, now=now, wait=wait)
    tripped(queue, circuit, by=by)


def tripped(queue: str, circuit: Circuit, *, by: str = "host:1") -> None:
    """Store the state of a queue's breaker, as the process does whose handlers have failed."""
    BreakerTable().put(queue, circuit, by)
