"""What a process tells of the stopped queues that it gave back, so that its death raises no doubt about the rest."""

from collections.abc import Callable, Collection, Iterable, Mapping

from django.db import router

from django_rmq_retry.models import ConsumerProcess

MOST_TOLD = 100
"""The most messages of one queue that are told."""


class LetGo:
    """The column of its row in the database; one that it does not change is safe: it then tells of fewer queues."""

    def __init__(self, who: str, *, left_of: Callable[[str], Collection[str] | None]) -> None:
        self._who = who
        self._left_of = left_of
        """Returns the ids of all messages that the process has left of a stopped queue; None if they are not known."""
        self._told: Mapping[str, Collection[str]] | None = {}
        """What the row says; None if a statement has failed, which may have changed it."""

    def look(self, stopped: Iterable[str]) -> None:
        """Write what it has left of stopped queues, if that has changed."""
        left = {queue: self._left_of(queue) for queue in stopped}
        self._tell({queue: sorted(ids) for queue, ids in left.items() if ids is not None and len(ids) <= MOST_TOLD})

    def takes(self, queue: str) -> None:
        """Write that it may have something of a queue; called before it takes any."""
        self._tell({name: ids for name, ids in (self._told or {}).items() if name != queue})

    def _tell(self, wanted: Mapping[str, Collection[str]]) -> None:
        if wanted == self._told:
            return
        self._told = None
        rows = ConsumerProcess.objects.using(router.db_for_write(ConsumerProcess)).filter(name=self._who)
        # Without a row, before the first heartbeat, nothing is told.
        self._told = wanted if rows.update(let_go=wanted) else {}
