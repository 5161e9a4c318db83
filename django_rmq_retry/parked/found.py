"""What a search finds besides parked messages, and where it has looked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy


class Room(Enum):
    """A place of messages that were not parked, or not yet."""

    OUTBOX = gettext_lazy("the outbox")
    KEYS = gettext_lazy("blocked keys and the messages behind them")
    RETRIES = gettext_lazy("messages that were tried or delivered again")
    QUEUES = gettext_lazy("the first messages of halted queues, by message id or first business key")
    GONE = gettext_lazy("deleted records, messages discarded from the outbox, and what was checked")
    HANDLERS = gettext_lazy("messages in a handler, by message id or first business key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that a search has found in a room."""

    name: str
    words: str
    """Where it is, as the beginning of a line."""
    room: Room
    place: object
    """What leads to it: the number of a row of the outbox, a key, or a queue; None if no page shows it."""
    behind: str = ""
    """The identity of the message that it waits behind."""
    done: bool = False
    """True if it will not be handled any more."""
    doubtful: bool = False
    """True if it is not known whether its work was done, or perhaps it was done twice."""
    twice: bool = False
    """True if its work was done more than once, which the attempts of its handlers say."""
    own: bool = False
    """True if it may be the message of a record with the same name, which tells what became of it."""

    def __str__(self) -> str:
        return f"{self.words}: {self.name}"

    @property
    def became(self) -> str:
        """Say in a few words whether its work is done."""
        if self.twice:
            return _("done twice")
        if self.doubtful:
            return _("perhaps done twice") if self.done else _("outcome unknown")
        return _("done") if self.done else _("may still be handled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What a search has found besides records, and where it has looked."""

    found: Mapping[str, Sequence[Found]] = field(default_factory=dict)
    """By the key or word that was looked for."""
    searched: Sequence[str] = ()
    cut: bool = False
    """True if more was found for a key than is named."""

    @property
    def every(self) -> list[Found]:
        """All that was found, each once."""
        return list(dict.fromkeys(one for some in self.found.values() for one in some))

    @property
    def beside(self) -> list[Found]:
        """What was found of other messages than those of the records with the same names."""
        return [one for one in self.every if not one.own]

    @property
    def looked(self) -> str:
        """Say where else was searched, and where not."""
        also = _("Also searched: %(places)s.") % {"places": "; ".join(self.searched)}
        unread = _(
            "Not searched: messages that wait in a queue of RabbitMQ, and contents beyond their first 16 KB or that "
            "are not plain text."
        )
        return " ".join([*([also] if self.searched else []), unread])

    @property
    def unstored(self) -> str:
        """Say that a message may have existed that is found nowhere."""
        return _(
            "A message that was handled at its first attempt is not stored here, so it may have come nevertheless."
        )

    @property
    def limits(self) -> str:
        return f"{self.looked} {self.unstored}"


def said(room: Room, read: Sequence[int]) -> str:
    if not read:
        return str(room.value)
    text = _("%(place)s, but not the contents of more than the latest %(count)d messages")
    return text % {"place": room.value, "count": sum(read)}
