"""Attempts without a broker: a journal that keeps them, clocks that stand still, and one handler with all around it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from django_rmq_retry import Delivery, Fixed, Json, Queue, RetryThenPark
from django_rmq_retry.consumer.attempt import AttemptPipeline
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.surroundings import Surroundings
from django_rmq_retry.handlers import Match, Subscription, WorkQueue, work_queues_of
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.messages import Codec, Reason, Settlement
from django_rmq_retry.policies import Kind, Policy, Verdict
from tests.handlers.factories import NOW, delivery

PLAIN = RetryThenPark(attempts=3, backoff=Fixed(30))


def surroundings(*journals: Any, **parts: Any) -> Surroundings:
    """Clocks that stand still and no jitter; all parts may be replaced."""
    still: dict[str, Any] = {"clock": lambda: 1.0, "now_ms": lambda: NOW, "chance": lambda: 0.0}
    return Surroundings(**{"with_connections": nullcontext, "journals": journals, **still, **parts})


def pipeline_of(*handlers: Subscription, journals: tuple[Any, ...] = (), **parts: Any) -> BatchPipeline:
    """The pipeline of these handlers, in such surroundings."""
    return BatchPipeline(work_queues_of(handlers), surroundings(*journals, **parts))


def finished(
    verdict: Verdict,
    arrival: Delivery | None = None,
    *,
    handler: Subscription | None = None,
    seconds: float = 0.5,
    error: BaseException | None = None,
) -> FinishedAttempt:
    """An attempt that has ended with a verdict, as journals receive it."""
    arrived = arrival or delivery(message_id="m-1")
    told: dict[str, Any] = {"seconds": seconds, "error": error, "stale": arrived.is_stale}
    return FinishedAttempt(delivery=arrived, verdict=verdict, subscription=handler, **told)


@dataclass
class Book:
    """A journal that keeps the attempts it receives, or fails."""

    notes_acks: bool = True
    failing: BaseException | None = None
    notes: list[FinishedAttempt] = field(default_factory=list)

    def note(self, attempt: FinishedAttempt) -> None:
        self.notes.append(attempt)
        if self.failing:
            raise self.failing


@dataclass
class Bench:
    """One handler and everything around it."""

    policy: Policy = PLAIN
    act: Callable[[Delivery], object] = lambda _: None
    codec: Codec = Json()
    match: Match = Match()
    queue: Queue = Queue("payments")
    book: Book = field(default_factory=Book)
    log: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    chance: Callable[[], float] = lambda: 0.0

    def settle(self, arrival: Delivery | None = None) -> Settlement:
        return self.pipeline().attempt(delivery() if arrival is None else arrival)

    def pipeline(self, *others: Subscription) -> AttemptPipeline:
        """The pipeline of this handler, or of other ones at its place."""
        return AttemptPipeline(work_queues_of(others) if others else self.work_queues(), self.surroundings())

    def surroundings(self) -> Surroundings:
        return surroundings(self.book, with_connections=self.with_connections, chance=self.chance, **self.options)

    def work_queues(self) -> tuple[WorkQueue, ...]:
        made = Subscription(
            name="payments.handlers.charge",
            run=self.run,
            queue=self.queue,
            policy=self.policy,
            park="payments.parked",
            match=self.match,
            codec=self.codec,
        )
        return work_queues_of([made])

    def run(self, arrival: Delivery) -> object:
        self.log.append("run")
        return self.act(arrival)

    @contextmanager
    def with_connections(self) -> Iterator[None]:
        self.log.append("enter")
        try:
            yield
        finally:
            self.log.append("leave")

    @property
    def verdicts(self) -> list[tuple[Kind, Reason | None]]:
        return [(note.verdict.kind, note.verdict.reason) for note in self.book.notes]
