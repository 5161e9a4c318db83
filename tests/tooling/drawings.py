"""The drawings of the documentation, made by the product: ``python -m tests.tooling.drawings`` rewrites them."""

from collections.abc import Sequence
from pathlib import Path

from django_rmq_retry import DeadLetter, Exchange, Exponential, OneShot, Queue, RetryThenPark, StopTheLine, WaitQueue
from django_rmq_retry.handlers import Subscription, WorkQueue, work_queues_of
from django_rmq_retry.handlers.layout import copies_of, layout
from django_rmq_retry.policies import Policy
from django_rmq_retry.topology.drawings import Shape, svg

FOLDER = Path(__file__).parents[2] / "docs" / "drawings"

_payments = Exchange("payments", "topic")
_main = Exchange("main-exchange", "direct")
_primary = Exchange("primary-exchange", "direct")
_loop = DeadLetter(exchange="retry-exchange", queue="retry-queue", after=30)
_wait = WaitQueue("wait-exchange", "wait-queue")
_backoff = Exponential(10, factor=3)

HANDLERS: dict[str, tuple[Queue, Policy, str]] = {
    "ladder": (
        Queue("payments.charge", bindings=[_payments.bind("charge.#")]),
        RetryThenPark(attempts=5, backoff=_backoff),
        "payments.charge.parked",
    ),
    "dead-letter": (
        Queue("main-queue", bindings=[_main.bind("srvc.transact.cash")]),
        RetryThenPark(attempts=4, via=_loop),
        "parking-queue",
    ),
    "wait-queue": (
        Queue("primary-queue", bindings=[_primary.bind("routing-key-a"), _primary.bind("routing-key-b")]),
        RetryThenPark(attempts=4, backoff=_backoff, via=_wait),
        "primary-queue.parked",
    ),
    "stop-the-line": (Queue("ledger.post"), StopTheLine(), "ledger.post.parked"),
    "one-shot": (Queue("rates.quote"), OneShot(park=True), "rates.quote.parked"),
}


def shape_of(found: Sequence[WorkQueue], *, extra: Sequence[Queue | Exchange] = ()) -> Shape:
    """The shape of the topology that these work queues need, with additions of the project."""
    return Shape.of(layout(found, extra=extra), copies_of(found))


def drawn(name: str) -> str:
    """Return the drawing of this name, as its file must be."""
    queue, policy, park = HANDLERS[name]
    found = work_queues_of([Subscription(name=name, run=lambda _: None, queue=queue, policy=policy, park=park)])
    return svg(shape_of(found), title=f"Topology of {queue.name}")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in HANDLERS:
        (FOLDER / f"{name}.svg").write_text(drawn(name))


if __name__ == "__main__":
    main()
