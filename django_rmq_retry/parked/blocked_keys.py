"""Lists blocked ordering keys, and unblocks them."""

from collections.abc import Sequence

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry.models import Action, BlockedKey
from django_rmq_retry.ordering.keys import keys_alias, locked, pass_on
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import transaction_of
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated, Refused


def blocked(*, handler: str = "") -> QuerySet[BlockedKey]:
    """Return the blocked keys, the longest blocked first."""
    rows = BlockedKey.objects.using(keys_alias()).order_by("since", "pk")
    return rows.filter(handler=handler) if handler else rows


@transaction_of(BlockedKey)
def unblock(known: BlockedKey, actor: Actor, *, reason: str) -> BlockedKey | None:
    """Unblock a key, so that its next message is handled; return its new row, or None if no message waits any more.

    Raise Outdated, and change nothing, if the key's first message is no longer that of the given row.
    """
    if not reason.strip():
        text = _(
            "Enter a reason: it is required because the next message is handled although the first one is not resolved."
        )
        raise Refused(text)
    now = locked(known.digest)
    if now is None or (now.name, now.since) != (known.name, known.since):
        raise Outdated(_("Nothing was changed: another message now goes first on this key."))
    following = pass_on(now)
    facts = {name: getattr(now, name) for name in ("handler", "key", "queue", "parked", "waiting")}
    facts |= {"unblocked": now.blocker, "goes_first": following.shown if following else ""}
    log_action(actor, Action.UNBLOCK, reason=reason, subject=str(now), count=1, facts=facts)
    return locked(known.digest)


def blocked_by_name(handler: str, keys: Sequence[str]) -> list[BlockedKey]:
    """Return the blocked keys of a handler by name; raise NothingChosen if one of them is not blocked."""
    rows = {row.key: row for row in blocked(handler=handler)}
    missing = [key for key in keys if key not in rows]
    if missing:
        text = _("Handler %(handler)s has no blocked key %(key)s.")
        raise NothingChosen(text % {"handler": handler, "key": ", ".join(missing)})
    return [rows[key] for key in dict.fromkeys(keys)]
