"""The messages whose edit or discard waits for a second person.

To send them as they are would overtake that decision, so a requeue leaves them out until an operator includes them.
"""

from collections.abc import Mapping, Sequence

from django.db.models import Q

from django_rmq_retry import database_clock
from django_rmq_retry.models import ApprovalRequest, GatedAct, RequestMember
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import EDITS, selection_of
from django_rmq_retry.statements import one_of

FINDINGS: Mapping[str, Sequence[GatedAct]] = {"edit_asked": EDITS, "discard_asked": (GatedAct.DISCARD,)}
"""The findings of a requeue, each with the acts that are asked for."""
ACTS = frozenset(act for acts in FINDINGS.values() for act in acts)


def conditions() -> Mapping[str, Q]:
    """Return the condition of each finding that an open request leads to."""
    found: dict[str, Q] = {}
    for name, requests in _asked().items():
        named = {number for one in requests for number in selection_of(one).revisions}
        members = RequestMember.objects.using(records_alias()).filter(request__in=[one.pk for one in requests])
        found[name] = Q(state__in=OPEN) & (
            one_of("pk", named, using=records_alias()) | Q(pk__in=members.order_by().values("message"))
        )
    return found


def who_asked(name: str) -> str:
    """Return the requests that lead to a finding, each with who asked."""
    return ", ".join(f"{one} ({one.by})" for one in _asked().get(name, ()))


def _asked() -> Mapping[str, list[ApprovalRequest]]:
    now = database_clock.now(records_alias())
    rows = ApprovalRequest.objects.using(records_alias()).open(now).filter(act__in=ACTS).defer("body", "properties")
    found: dict[str, list[ApprovalRequest]] = {}
    for one in rows:
        found.setdefault(next(name for name, some in FINDINGS.items() if one.act in some), []).append(one)
    return found
