"""The messages that an approved discard left out, because they had changed or a rule of the project forbade it.

They were perhaps done in another way, so a requeue leaves them out until an operator includes them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry.models import ApprovalRequest, GatedAct, MissedDiscard, OperatorAction, ParkedMessage, State
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.audit import newest_acts
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import selection_of
from django_rmq_retry.parked.outcome_texts import CHANGING, act_in_words, edited_by
from django_rmq_retry.wording import minute

MOST_NAMED = 20
"""The most messages of which it is said why a request left them out."""


def note(request: int, left: Sequence[ParkedMessage], *, refused: Collection[int]) -> None:
    """Note that an approved discard left these messages out, which are locked.

    They get another revision, so that no run that had chosen them before sends them.
    """
    using = records_alias()
    missed = [
        MissedDiscard(request_id=request, message=one, refused=one.pk in refused, settled=one.state == State.DISCARDED)
        for one in left
    ]
    MissedDiscard.objects.using(using).bulk_create(missed, ignore_conflicts=True)
    rows = ParkedMessage.objects.using(using).filter(pk__in=[one.pk for one in left], state__in=OPEN)
    rows.update(revision=F("revision") + 1)


def settle(messages: Collection[int]) -> None:
    """Note that these messages were discarded after all."""
    unsettled(messages).update(settled=True)


def waiting() -> Q:
    """Match the open messages that should have been discarded."""
    missed = MissedDiscard.objects.using(records_alias()).filter(settled=False).order_by()
    return Q(state__in=OPEN, pk__in=missed.values("message"))


def unsettled(messages: Collection[int]) -> QuerySet[MissedDiscard]:
    """Return how requests left these messages out that were not discarded since."""
    return MissedDiscard.objects.using(records_alias()).filter(message__in=messages, settled=False)


def of_messages(messages: Collection[int]) -> dict[int, ApprovalRequest]:
    """Return those of these messages that should have been discarded, each with the latest request for it."""
    found = unsettled(messages).select_related("request").defer("request__body", "request__properties", "request__wish")
    return {one.message_id: one.request for one in found.order_by("request")}


def sentence(request: ApprovalRequest) -> str:
    """Return what a page says of a message that this request should have discarded."""
    text = _("A discard of this message was approved (%(reason)s, %(name)s, %(when)s), but not done.")
    when = minute(request.decided_at) if request.decided_at else "-"
    return text % {"reason": request.reason_in_words, "name": request.decided_by, "when": when}


def sentences(examples: Sequence[tuple[int, str]]) -> list[tuple[int, str, str]]:
    """Return the same of some of these messages: number, name and sentence of each."""
    known = of_messages([pk for pk, _name in examples])
    return [(pk, name, sentence(known[pk])) for pk, name in examples if pk in known]


def why(missed: MissedDiscard, request: ApprovalRequest, acts: Iterable[OperatorAction]) -> str:
    """Return why a request left a message out; ``acts`` are those on the message, the newest first."""
    if missed.refused:
        return _("A rule of the project forbids it.")
    return _changed(request, acts) or _("It had changed since that was asked for.")


def _changed(request: ApprovalRequest, acts: Iterable[OperatorAction]) -> str:
    """Return what changed a message between the request and its approval; empty if no act did."""
    since, until = request.asked_at, request.decided_at or request.asked_at
    act = next((one for one in acts if one.action in CHANGING and since <= one.at <= until), None)
    return _("It had changed since that was asked for: {act}").format(act=act_in_words(act)) if act else ""


def left_out_of(request: ApprovalRequest) -> list[tuple[ParkedMessage, str]]:
    """Return the first messages that a discard, or an edit of many, left out, each with the reason."""
    if request.act == GatedAct.EDIT_MANY:
        return _not_edited(request)
    rows = MissedDiscard.objects.using(records_alias()).filter(request=request.pk).order_by("message")
    some = list(rows.select_related("message").defer("message__body", "message__properties")[:MOST_NAMED])
    acts = _changes([one.message_id for one in some], request)
    return [(one.message, why(one, request, acts.get(one.message_id, ()))) for one in some]


def _not_edited(request: ApprovalRequest) -> list[tuple[ParkedMessage, str]]:
    left = sorted(set(selection_of(request).revisions) - edited_by(request))[:MOST_NAMED]
    rows = ParkedMessage.objects.using(records_alias()).filter(pk__in=left).defer("body", "properties").order_by("pk")
    acts = _changes(left, request)
    otherwise = _("The edit fitted it no more, or a rule of the project forbids it.")
    return [(one, _changed(request, acts.get(one.pk, ())) or otherwise) for one in rows]


def _changes(messages: Collection[int], request: ApprovalRequest) -> Mapping[int, Sequence[OperatorAction]]:
    """Return the acts that changed each of these messages after the request, the newest first."""
    return newest_acts(messages, CHANGING, since=request.asked_at)


def by_request(message: int, requests: Collection[int]) -> Mapping[int, MissedDiscard]:
    """Return those of these requests that left a message out, each with how."""
    if not requests:
        return {}
    rows = MissedDiscard.objects.using(records_alias()).filter(message=message, request__in=requests)
    return {one.request_id: one for one in rows}
