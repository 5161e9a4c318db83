"""Messages without a row that operators have acted on, as a search looks for them.

These are deleted records, what was discarded from the outbox, and what was checked.
"""

from collections.abc import Collection, Iterator
from datetime import datetime

from django.utils.translation import gettext as _

from django_rmq_retry.models import Action, FormerName, OperatorAction
from django_rmq_retry.parked.checked import checked_in_words
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.key_match import Wanted
from django_rmq_retry.parked.shelves import named
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import minute


class GoneShelf:
    """One look at the names of messages that are gone; the audit log tells what operators did with each."""

    read, stopped, cut = 0, False, False

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    @classmethod
    def look(cls, wanted: Wanted) -> "GoneShelf":
        return cls(wanted)

    def found(self) -> Iterator[tuple[str, Found]]:
        rows = FormerName.objects.using(records_alias()).values_list("value", "deleted_at", "action", "message")
        known, self.cut = self._wanted.folded(rows)
        numbers = {action for _name, _at, action, _message in known if action is not None}
        acts = OperatorAction.objects.using(records_alias()).filter(action=Action.CHECK)
        checks = {one.number: one for some in with_one_of(acts, "number", numbers) for one in some}
        first = self._first_names({message for _name, _at, _action, message in known if message is not None})
        for name, at, action, message in known:
            words = checked_in_words(checks[action]) if action in checks else _words(at, discarded=action is not None)
            place = first.get(message, name)
            told = named([place], name)
            one = Found(name=told, words=words, room=Room.GONE, place=place, done=True, own=True)
            yield from ((key, one) for key in self._wanted.of_name(name))

    def _first_names(self, messages: Collection[int]) -> dict[int | None, str]:
        """Return by what each deleted record was named: its first business key, or its id."""
        rows = FormerName.objects.using(records_alias()).order_by("-pk")
        return {
            one: name
            for some in with_one_of(rows, "message", messages)
            for one, name in some.values_list("message", "value")
        }


def _words(at: datetime, *, discarded: bool) -> str:
    told = {"time": minute(at)}
    if discarded:
        return _("Discarded from the outbox at %(time)s") % told
    return _("Was parked; its record was deleted at %(time)s") % told
