"""What a person does to a blocked key: see it, and let it go on without the message that goes first."""

from collections.abc import Sequence

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry.models import BlockedKey, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.locking import steadily
from django_rmq_retry.operating.refusals import NothingChosen, Outdated, Refused
from django_rmq_retry.ordering.blocking import database, locked, pass_on


def blocked(*, handler: str = "", key: str = "") -> QuerySet[BlockedKey]:
    """The blocked keys, those that have stood longest first."""
    rows = BlockedKey.objects.using(database()).order_by("since", "pk")
    if handler:
        rows = rows.filter(handler=handler)
    return rows.filter(key=key) if key else rows


def let_go(known: BlockedKey, actor: Actor, *, reason: str) -> BlockedKey | None:
    """Let the next message of a key go first; the key as it is then, None where nothing of it waits any more.

    Nothing is done where another message goes first by now than in the row that is given.
    """
    if not reason.strip():
        raise Refused(_("Say why: what waits goes on although the message before it is not resolved."))

    def act() -> BlockedKey | None:
        with transaction.atomic(using=database()):
            now = locked(known.digest)
            if now is None or (now.name, now.since) != (known.name, known.since):
                raise Outdated(_("Nothing was changed: the key has gone on meanwhile."))
            following = pass_on(now)
            facts = {
                "handler": now.handler,
                "key": now.key,
                "queue": now.queue,
                "let_go": now.blocker,
                "parked": now.parked,
                "waiting": now.held,
                "goes_first": following.shown if following else "",
            }
            note(actor, Verb.RELEASE, reason=reason, subject=str(now), count=1, facts=facts)
            return locked(known.digest)

    return steadily(act)


def named(handler: str, keys: Sequence[str]) -> list[BlockedKey]:
    """The blocked keys of a handler by their names; NothingChosen where one of them is not blocked."""
    found = {row.key: row for row in blocked(handler=handler)}
    missing = [key for key in keys if key not in found]
    if missing:
        said = _("Handler %(handler)s has no blocked key %(key)s.")
        raise NothingChosen(said % {"handler": handler, "key": ", ".join(missing)})
    return [found[key] for key in dict.fromkeys(keys)]
