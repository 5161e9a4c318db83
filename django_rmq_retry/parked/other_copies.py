"""What became of the messages of which others are copies, in words: sent again, one of these is done twice."""

from datetime import datetime

from django.db.models import Case, Count, Exists, Max, Min, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from django_rmq_retry.models import ItemState, ParkedMessage, RequeueItem, State
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.may_have_run import may_have_run
from django_rmq_retry.parked.siblings import RESTORED, SENT, others
from django_rmq_retry.wording import minute, number

MOST_TOLD = 5000
"""Of more messages it is not looked up what became of each one's copies."""
HANDLED = Q(succeeded_at__isnull=False) | Q(state=State.PROCESSED)


def fates(rows: QuerySet[ParkedMessage], count: int, under_way: Q, now: datetime) -> tuple[str, bool]:
    """Return what became of the other copies of so many messages, and if a copy of any was handled: by two queries."""
    if count > MOST_TOLD:
        return _("another copy was sent or discarded, is on hold, or goes first"), False
    known = others(has_siblings=True)
    held = Q(state=State.ON_HOLD) & ~Q(held_until__lte=now)
    kinds = {
        "handled": HANDLED,
        "sent": SENT | under_way,
        "unconfirmed": Q(state__in=OPEN, unconfirmed=True),
        "may_have_run": Q(state__in=OPEN) & may_have_run(),
        "discarded": RESTORED | Q(state__in=OPEN, discarded_at__isnull=False),
        "on_hold": held,
    }
    cases = [When(Exists(known.filter(condition)), then=Value(kind)) for kind, condition in kinds.items()]
    by_kind = rows.order_by().annotate(kind=Case(*cases, default=Value("first"))).values_list("kind")
    counts = dict(by_kind.annotate(n=Count("*")))
    texts = {
        "handled": _handled(rows) if "handled" in counts else "",
        "sent": _("another copy was sent, and its outcome is not known yet"),
        "unconfirmed": _("another copy may have been delivered"),
        "may_have_run": _("another copy may have been handled"),
        "discarded": _("an operator had discarded another copy"),
        "on_hold": _("another copy is on hold"),
        "first": _("another copy goes first"),
    }
    told = [f"{number(counts[kind])}: {text}" for kind, text in texts.items() if kind in counts]
    return " · ".join(told), "handled" in counts


def _handled(rows: QuerySet[ParkedMessage]) -> str:
    """Return when the other copies were handled, and by which run, if it was one."""
    alike = ParkedMessage.objects.filter(HANDLED, has_siblings=True, content__in=rows.order_by().values("content"))
    at = Coalesce("succeeded_at", "resolved_at")
    spans = alike.aggregate(first=Min(at), last=Max(at))
    done = RequeueItem.objects.filter(message__in=alike.order_by().values("pk"), state=ItemState.PROCESSED)
    runs = list(done.order_by().values_list("run", flat=True).distinct()[:2])
    names = {"when": _between(spans["first"], spans["last"]), "run": runs[0] if runs else 0}
    if len(runs) == 1:
        return _("another copy was processed %(when)s (requeue run %(run)s)") % names
    return _("another copy was processed %(when)s") % names


def _between(first: datetime | None, last: datetime | None) -> str:
    since, until = (minute(first), minute(last)) if first and last else ("-", "-")
    return since if since == until else f"{since} \N{EN DASH} {until}"
