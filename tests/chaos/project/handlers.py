"""Handlers, found by autodiscovery like in every project."""

from django.db import transaction
from django.db.models import F

from django_rmq_retry import (
    AckFirst,
    Batch,
    Breaker,
    Delivery,
    Fixed,
    Queue,
    RetryThenPark,
    Steps,
    StopTheLine,
    handler,
)
from tests.chaos.lanes import ATTEMPTS, LINE_WAIT, LONGEST, METERED, TOGETHER, WAITS, planted
from tests.chaos.naming import read
from tests.chaos.project.acting import Down, Hopeless, act, did, lean, wait_and_follow
from tests.chaos.project.batching import write_all
from tests.chaos.project.models import Account, Booking, Effect
from tests.chaos.project.planting import (
    ack_tasks_first,
    ack_what_was_rolled_back,
    count_whole_batches,
    deafen,
    forget_results,
    ignore_transactions,
    misdate,
)

steps = Steps(list(WAITS))
patient = RetryThenPark(attempts=ATTEMPTS, backoff=steps, park_on=Hopeless)
if planted("deaf"):
    deafen()
if planted("host_clock"):
    misdate()
if planted("task_acked"):
    ack_tasks_first()
if planted("task_at_once"):
    ignore_transactions()
if planted("no_results"):
    forget_results()
if planted("batch_counted"):
    count_whole_batches()
if planted("batch_rolled"):
    ack_what_was_rolled_back()
breaker = Breaker(on=Down, probe_after=1, longest=4)
careless = RetryThenPark(attempts=ATTEMPTS, backoff=steps, park_on=Hopeless, via=AckFirst())


@handler("chaos.flood", policy=careless if planted("ack_first") else patient)
def flood(message: Delivery) -> None:
    act(message)
    did(message)


@handler("chaos.line", policy=StopTheLine(backoff=Fixed(LINE_WAIT)))
def line(message: Delivery) -> None:
    act(message)
    did(message)


@handler("chaos.hostile", policy=patient)
def hostile(message: Delivery) -> None:
    raise Hopeless(f"read as {type(message.data).__name__}")


@handler("chaos.poison", policy=patient)
def poison(message: Delivery) -> None:
    act(message)


@handler(Queue("chaos.idle", type="classic"), policy=patient)
def idle(message: Delivery) -> None:
    did(message)


@handler("chaos.once", policy=patient, once=not planted("not_once"))
def once(message: Delivery) -> None:
    act(message)
    with transaction.atomic():
        Effect.objects.create(name=message.data["id"], attempt=message.attempt)


@handler("chaos.sale", policy=patient)
def sale(message: Delivery) -> None:
    act(message)
    with transaction.atomic():
        Effect.objects.create(name=message.data["id"], attempt=message.attempt)


@handler("chaos.keyed", policy=patient, order_by=lambda message: read(message.data["id"]).key)
def keyed(message: Delivery) -> None:
    act(message)
    Effect.objects.create(name=message.data["id"], attempt=message.attempt)


@handler("chaos.awaited", policy=patient, once=not planted("not_once"), timeout=LONGEST)
async def awaited(message: Delivery) -> None:
    """Write the effect first: a handler that is cancelled, or whose process is killed, must not leave it."""
    await Effect.objects.acreate(name=message.data["id"], attempt=message.attempt)
    await wait_and_follow(message.data["id"], message.attempt)


@handler("chaos.batch", policy=patient, batch=Batch(TOGETHER))
def batch(messages: list[Delivery]) -> None:
    write_all(messages)


@handler("chaos.batchonce", policy=patient, batch=Batch(TOGETHER), once=not planted("not_once"))
def batchonce(messages: list[Delivery]) -> None:
    write_all(messages)


@handler("chaos.fragile", policy=patient, breaker=None if planted("no_breaker") else breaker)
def fragile(message: Delivery) -> None:
    act(message, noted=True)
    lean(message)
    did(message)


@handler("chaos.gated", policy=patient)
def gated(message: Delivery) -> None:
    act(message, noted=True)
    did(message)


@handler("chaos.metered", policy=patient, rate=None if planted("no_rate") else METERED)
def metered(message: Delivery) -> None:
    act(message, noted=True)
    did(message)


@handler("chaos.book", policy=patient, once=True)
def book(message: Delivery) -> None:
    """Move money, and publish a message about it in the same transaction."""
    said = message.data
    Account.objects.filter(pk=said["account"]).update(cents=F("cents") + said["cents"])
    Booking.objects.create(payment=said["payment"], leg="book")
    report.publish(said)


@handler("chaos.report", policy=patient, once=True)
def report(message: Delivery) -> None:
    said = message.data
    Account.objects.filter(pk=said["account"]).update(reported=F("reported") + said["cents"])
    Booking.objects.create(payment=said["payment"], leg="report")
