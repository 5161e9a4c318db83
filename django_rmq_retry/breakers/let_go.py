"""What a process tells of the stopped queues that it has nothing of, so that its death raises no doubt about them."""

from collections.abc import Callable, Iterable

from django.db import router

from django_rmq_retry.models import ConsumerProcess


class LetGo:
    """The column of its row in the database; one that it does not change is safe: it then tells of fewer queues."""

    def __init__(self, who: str, *, has_none: Callable[[str], bool]) -> None:
        self._who = who
        self._has_none = has_none
        """True of a stopped queue of which the process has no message left."""
        self._told = frozenset[str]()
        """What the row says."""

    def look(self, stopped: Iterable[str]) -> None:
        """Write of which stopped queues it has nothing, if that has changed."""
        self._tell(frozenset(filter(self._has_none, stopped)))

    def takes(self, queue: str) -> None:
        """Write that it may have something of a queue; called before it takes any."""
        self._tell(self._told - {queue})

    def _tell(self, wanted: frozenset[str]) -> None:
        if wanted != self._told:
            rows = ConsumerProcess.objects.using(router.db_for_write(ConsumerProcess)).filter(name=self._who)
            # Without a row, before the first heartbeat, nothing is told.
            if rows.update(let_go=sorted(wanted)):
                self._told = wanted
