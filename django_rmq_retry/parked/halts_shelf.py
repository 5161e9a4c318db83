"""The first messages of halted queues, as a search looks for them."""

from collections.abc import Iterator

from django.utils.translation import gettext as _

from django_rmq_retry.models import QueueControl
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.shelves import Shelf, named


def shelves() -> Iterator[Shelf]:
    halted = QueueControl.objects.filter(halted_at__isnull=False)
    yield Shelf(rows=halted, columns=("halted_key", "halted_message"), found=_halted)


def _halted(row: QueueControl, _name: str, why: str) -> Found:
    known = named([row.halted_key or row.halted_message], why)
    name = _("%(message)s, first in %(queue)s") % {"message": known, "queue": row.queue}
    return Found(name=name, words=_("In a halted queue"), room=Room.QUEUES, place=row.queue)
