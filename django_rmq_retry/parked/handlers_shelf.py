"""What the processes had in their handlers, as a search looks for it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from django.db import router
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.since_then import Later, attempts_with, later
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.key_match import Wanted
from django_rmq_retry.parked.may_have_run import handlers_with_once
from django_rmq_retry.wording import second

MOST_PROCESSES = 200
NAMES = ("key", "message_id")


class HandlersShelf:
    """What the processes had in their handlers at their last heartbeat; each entry names one message."""

    read, stopped, cut = 0, False, False

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    @classmethod
    def look(cls, wanted: Wanted) -> "HandlersShelf":
        return cls(wanted)

    def found(self) -> Iterator[tuple[str, Found]]:
        using = router.db_for_read(ConsumerProcess)
        rows = ConsumerProcess.objects.using(using).exclude(in_flight=[]).order_by("-beat_at")[:MOST_PROCESSES]
        now = database_clock.reckoned(using)
        known = [(row, entry, keys) for row in rows for entry in row.in_flight if (keys := self._named_by(entry))]
        gone = {row.pk: row.beat_at for row, _entry, _keys in known if row.ended_at is not None or row.silent(now)}
        once = handlers_with_once()
        ids = {_text(entry, "message_id") for row, entry, _keys in known if row.pk in gone} - {""}
        tried = attempts_with(ids, min(gone.values(), default=now))
        for row, entry, keys in known:
            then = later(tried, _text(entry, "queue"), _text(entry, "message_id"), row.beat_at)
            safe = then is not None and then.attempt.handler in once
            one = _in_handler(row, entry, replace(then, twice=False) if then and safe else then, gone=row.pk in gone)
            yield from ((key, one) for key in keys)

    def _named_by(self, entry: Mapping[str, Any]) -> list[str]:
        names = [_text(entry, name) for name in NAMES]
        return [key for name in names if name for key in self._wanted.of_name(name)]


def _text(entry: Mapping[str, Any], name: str) -> str:
    return str(entry.get(name) or "")


def _in_handler(row: ConsumerProcess, entry: Mapping[str, Any], then: Later | None, *, gone: bool) -> Found:
    name = next(filter(None, (_text(entry, name) for name in NAMES)), "")
    return Found(
        name=f"{name} ({entry.get('queue')})",
        words=_gone(row, then) if gone else _("In a handler on %(host)s") % {"host": row},
        room=Room.HANDLERS,
        place=row.host,
        done=gone and then is not None and then.ended,
        doubtful=gone and (then is None or then.twice),
        own=True,
    )


def _gone(row: ConsumerProcess, then: Later | None) -> str:
    """Return what is known of a message whose process is not heard of any more."""
    if then is None:
        return _("In a handler on %(host)s when its process was last heard of, outcome unknown") % {"host": row}
    text = _("In a handler on %(host)s when its process was last heard of, and tried again at %(time)s by %(other)s")
    if then.twice:
        text = _(
            "In a handler on %(host)s when its process was last heard of, and handled again at %(time)s by %(other)s: "
            "it may have been done twice"
        )
    elif then.ended:
        text = _("In a handler on %(host)s when its process was last heard of, and ended at %(time)s by %(other)s")
    return text % {"host": row, "time": second(then.attempt.ended_at), "other": then.process}
