"""Blocked ordering keys and the messages behind them, as a search looks for them."""

from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _

from django_rmq_retry.models import BlockedKey, BlockedMessage
from django_rmq_retry.ordering.keys import keys_alias
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.key_match import Keys
from django_rmq_retry.parked.shelves import MOST_READ, Shelf, ShelfLook, named


def shelves() -> Iterator[Shelf]:
    using = keys_alias()
    behind = BlockedMessage.objects.using(using).select_related("block")
    yield Shelf(rows=BlockedKey.objects.using(using), columns=("key", "blocker"), found=_first)
    yield Shelf(rows=behind, columns=("shown",), found=_behind, contents=True)


def _first(row: BlockedKey, _name: str, _why: str) -> Found:
    name = _("%(key)s, where %(message)s goes first") % {"key": row.key, "message": row.blocker}
    return Found(name=name, words=_("Blocked ordering key"), room=Room.KEYS, place=row.key, own=True)


def _behind(row: BlockedMessage, _name: str, why: str) -> Found:
    text = _("%(message)s, behind %(first)s (ordering key %(key)s)")
    name = text % {"message": named([row.shown], why), "first": row.block.blocker, "key": row.block.key}
    words, place = _("Waits for a blocked ordering key"), row.block.key
    return Found(name=name, words=words, room=Room.KEYS, place=place, behind=row.block.identity)


def behind_keys(keys: Sequence[str]) -> dict[int, str]:
    """Return the blocked keys behind which messages wait that these keys and ids name, each with one of them."""
    _blocked, waiting = shelves()
    known = ShelfLook(waiting, Keys(keys), most=MOST_READ).rows() if keys else ()
    return {row.block_id: key for key, row, _why in known}
