"""The first messages of halted queues, as a search looks for them."""

from collections.abc import Iterator

from django.utils.translation import gettext as _

from django_rmq_retry.models import QueueControl
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.shelves import Shelf


def shelves() -> Iterator[Shelf]:
    halted = QueueControl.objects.filter(halted_at__isnull=False)
    yield Shelf(rows=halted, columns=("halted_key", "halted_message"), found=_halted)


def _halted(row: QueueControl, why: str) -> Found:
    name = _("%(message)s, first in %(queue)s") % {"message": why, "queue": row.queue}
    return Found(name=name, words=_("In a halted queue"), room=Room.QUEUES, place=row.queue)
