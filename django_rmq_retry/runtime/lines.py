"""What is consumed for the handlers of a queue."""

from django_rmq_retry.broker.base import Line
from django_rmq_retry.core.layout import parks
from django_rmq_retry.core.subscription import Intake


def lines_of(intake: Intake, prefetch: int) -> list[Line]:
    """The work queue, and where what may have stopped a worker is tried alone."""
    work = Line(
        queue=intake.queue.name,
        prefetch=1 if intake.ordered else prefetch,
        ordered=intake.ordered,
        keyed=intake.keyed,
        parks=parks(intake),
    )
    if intake.suspects is None:
        return [work]
    # One suspect at a time: when it takes its worker along, no other message is charged with it.
    return [work, Line(queue=intake.suspects, prefetch=1, parks=True, alone=True)]
