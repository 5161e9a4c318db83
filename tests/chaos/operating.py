"""The operator process: requeues or discards parked messages until SIGTERM."""

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from tests.chaos.ledger import DISCARDED, REPAIRED, Ledger
from tests.chaos.naming import POISON, read, record_name
from tests.chaos.underfire import Helper, tried

if TYPE_CHECKING:
    from django_rmq_retry.models import ParkedMessage

PAUSE = 1.0
AT_ONCE = 20
LEFT_ALONE = 8
DISCARD_SHARE, MEND_SHARE = 0.3, 0.7


def left_alone(name: str) -> bool:
    """Return True for messages that stay parked to the end, the same ones in each round."""
    return crc32(name.encode()) % LEFT_ALONE == 0


def decide(ledger: Ledger, chance: random.Random, folder: Path) -> None:
    """Resolve some parked messages: most are repaired and requeued, some requeued without a repair, some discarded."""
    from django_rmq_retry.models import DiscardCategory, ParkedMessage, State  # noqa: PLC0415 - Django must be set up first
    from django_rmq_retry.parked.actions import discard  # noqa: PLC0415 - as above
    from django_rmq_retry.parked.operators import Actor  # noqa: PLC0415 - as above
    from django_rmq_retry.parked.requeue import requeue  # noqa: PLC0415 - as above
    from django_rmq_retry.parked.selection import Selection  # noqa: PLC0415 - as above

    share = float(os.environ.get("CHAOS_DISCARDS", DISCARD_SHARE))
    found = ParkedMessage.objects.filter(state=State.PARKED).order_by("?")[:AT_ONCE]
    rows = [row for row in found if not share or not left_alone(name_of(row))]
    given_up = [row for row in rows if chance.random() < share]
    if given_up:
        discard(Selection.of_ids(row.pk for row in given_up), Actor.of_code("chaos"), category=DiscardCategory.TEST)
        ledger.note_all(DISCARDED, map(name_of, given_up))
    others = [row for row in rows if row not in given_up and not beyond_repair(row)]
    for row in others:
        if chance.random() < MEND_SHARE:
            (folder / "repaired" / (name_of(row) or "-")).touch()
            ledger.note(REPAIRED, name_of(row))
    if others:
        requeue(others, by="chaos", include=INCLUDED, confirmed_permanent=True, stop_at=None)


def beyond_repair(row: "ParkedMessage") -> bool:
    """Return True for a hostile message, and for one that would kill its worker again."""
    return row.queue == "chaos.hostile" or read(name_of(row)).plan == POISON


INCLUDED = ("duplicates",)


def name_of(row: "ParkedMessage") -> str:
    return record_name(row.queue, row.message_id, bytes(row.body))


def main() -> int:
    helper = Helper("operator")
    while not helper.stopping.wait(PAUSE):
        tried(lambda: decide(helper.ledger, helper.chance, helper.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
