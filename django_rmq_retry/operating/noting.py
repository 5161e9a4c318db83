"""What people write about an error group: a note, who cares for it, its ticket, what it means; and muting it."""

from collections.abc import Mapping

from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import ErrorGroup, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note as audit
from django_rmq_retry.operating.locking import database, steadily
from django_rmq_retry.operating.refusals import NothingChosen

NOTE_LIMIT = 10_000
LIMITS = {"note": NOTE_LIMIT, "owner": 150, "ticket": 150, "plain": 255}


def annotate(group: int, actor: Actor, **texts: str) -> ErrorGroup:
    """Set some of note, owner, ticket and plain of a group; those that are not given stay."""
    unknown = sorted(set(texts) - set(LIMITS))
    if unknown:
        raise TypeError(f"annotate() does not know {', '.join(unknown)}; it takes {', '.join(LIMITS)}.")
    changes = {name: short(text, LIMITS[name]) for name, text in texts.items()}
    return _change(group, actor, Verb.NOTE, changes, reason=changes.get("note", ""))


def mute(group: int, actor: Actor, *, muted: bool = True, reason: str = "") -> ErrorGroup:
    """Raise no alarm over a group any more, or again; its messages are shown as before."""
    return _change(group, actor, Verb.MUTE, {"muted": muted}, reason=reason)


def _change(group: int, actor: Actor, verb: Verb, changes: Mapping[str, object], *, reason: str) -> ErrorGroup:
    def act() -> ErrorGroup:
        using = database()
        with transaction.atomic(using=using):
            rows = ErrorGroup.objects.using(using).filter(pk=group)
            if not connections[using].features.has_select_for_update:
                rows.update(parked=F("parked"))
            known = rows.select_for_update().first()
            if known is None:
                raise NothingChosen(_("There is no error group %(group)s.") % {"group": group})
            differing = {name: value for name, value in changes.items() if getattr(known, name) != value}
            if not differing:
                return known
            before = {name: getattr(known, name) for name in differing}
            noted = {"noted_at": timezone.now(), "noted_by": actor.name} if verb == Verb.NOTE else {}
            rows.update(**differing, **noted)
            facts = {"before": before, "after": differing}
            audit(actor, verb, reason=reason, group=group, subject=str(known), count=0, facts=facts)
            known.refresh_from_db(using=using)
        return known

    return steadily(act)
