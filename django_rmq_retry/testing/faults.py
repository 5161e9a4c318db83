"""What shall go wrong next, and where."""

from collections import deque
from enum import StrEnum

from django_rmq_retry.broker.base import Outcome

PUBLISH = "publish"


class Fault(StrEnum):
    """What can go wrong around a handler that runs well, or while something is published."""

    CRASH = "crash before ack"
    """The handler has run; its worker dies before the broker is told anything."""
    DUPLICATE = "duplicate delivery"
    """Everything is done, only the acknowledgement is lost: the message comes once more."""
    BROKER = "broker loss"
    """The connection breaks while the handler runs; or the message to be published is not sent."""
    CONFIRM = "confirm lost"
    """What is published is stored, and its publisher does not learn it."""
    NACK = "nack"
    """A queue refuses what is published."""


Trouble = Fault | BaseException | type[BaseException]

ENDS = {Fault.BROKER: Outcome.UNSENT, Fault.CONFIRM: Outcome.UNKNOWN, Fault.NACK: Outcome.NACKED}
"""How a publish ends."""
AROUND_HANDLERS = (Fault.CRASH, Fault.DUPLICATE, Fault.BROKER)


class Faults:
    """Each point has its troubles in a line; one is taken each time that it is passed."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Trouble]] = {}

    def add(self, point: str, trouble: Trouble | str, *, times: int) -> None:
        found = Fault(trouble) if isinstance(trouble, str) else trouble
        fitting: tuple[Fault, ...] = tuple(ENDS) if point == PUBLISH else AROUND_HANDLERS
        if (isinstance(found, Fault) and found not in fitting) or (point == PUBLISH and not isinstance(found, Fault)):
            known = ", ".join(repr(fault.value) for fault in fitting)
            more = "" if point == PUBLISH else ", or an exception"
            raise ValueError(f"fail_next({point!r}, …) takes {known}{more}, not {trouble!r}.")
        self._lines.setdefault(point, deque()).extend([found] * times)

    def take(self, point: str) -> Trouble | None:
        line = self._lines.get(point)
        return line.popleft() if line else None

    def take_end(self) -> Outcome | None:
        """How the publish under way ends, if not well."""
        trouble = self.take(PUBLISH)
        return ENDS[trouble] if isinstance(trouble, Fault) else None
