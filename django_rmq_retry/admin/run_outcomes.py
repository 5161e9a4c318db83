"""What became of the messages of a requeue run: which failed again and where they are now, and which it left out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_rmq_retry.admin.pages import refusal
from django_rmq_retry.models import EarlyRetry, ItemReason, ItemState, ParkedMessage, RequeueItem, RequeueRun, State
from django_rmq_retry.parked.claims import sent_by_others
from django_rmq_retry.parked.findings import DECIDED
from django_rmq_retry.parked.operators import has_own_rules
from django_rmq_retry.parked.outcome_texts import MOST_DECISIONS, decisions_on, keeps_back, kept_back_by

MOST_ITEMS = 50
MOST_ERRORS = 10
MOST_LOOKED_UP = 5000
SHOWN = ("business_key", "message_id", "content", "error")
"""The columns of a message that the page of a run needs; the project's rules may read any."""
MOST_OTHERS = 5
"""The most other messages that are named because of which some were left out."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Messages of a run that failed with one error, or were left out for one reason: their number and the first."""

    code: str
    text: str
    number: int
    items: Sequence[RequeueItem]
    """The first of them, but for those below."""
    decisions: Sequence[tuple[int, str, str]] = ()
    """What was decided on a few of them: the number, the name and the sentence."""
    other: ParkedMessage | None = None
    """The message because of which they were left out."""

    @property
    def more(self) -> bool:
        """True if some of them are not named."""
        return self.number > len(self.items) + len(self.decisions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The messages of a run that failed again: by their errors, the largest first, and by their states now."""

    errors: list[Alike] = field(default_factory=list)
    now: dict[State, int] = field(default_factory=dict)

    @property
    def parked(self) -> int:
        """Those that nobody has requeued, discarded or put on hold since."""
        return self.now.get(State.PARKED, 0)


def failures(request: HttpRequest, run: RequeueRun) -> Failures:
    """Return the parked messages that failed again; none of a run of retries, whose messages the broker has."""
    if not run.failed or run.retries_of:
        return Failures()
    failed = RequeueItem.objects.filter(run=run, state=ItemState.FAILED)
    error_of, state_of = _error_and_state(run)
    kinds = failed.order_by().annotate(of=error_of, now=state_of).values_list("of", "now").annotate(count=Count("pk"))
    errors, now = Counter[str](), Counter[State]()
    for error, state, count in kinds:
        errors[error] += count
        now[State(state)] += count
    first = _first(request, failed)
    shown = [
        Alike(error, error, count, [one for one in first if one.message.error == error])
        for error, count in errors.most_common(MOST_ERRORS)
    ]
    return Failures(errors=shown, now={state: now[state] for state in State if now[state]})


def _error_and_state(run: RequeueRun) -> tuple[Combinable, Combinable]:
    """Return the error and the state of an item's message, for a query of few items without a join.

    PostgreSQL may join by reading all messages from the oldest to the last of the run.
    """
    if run.failed > MOST_LOOKED_UP:
        return F("message__error"), F("message__state")
    message = ParkedMessage.objects.filter(pk=OuterRef("message"))
    return Subquery(message.values("error")), Subquery(message.values("state"))


def unsure(request: HttpRequest, run: RequeueRun) -> list[RequeueItem]:
    """Return the first messages whose copies the broker did not confirm."""
    return _first(request, RequeueItem.objects.filter(run=run, state=ItemState.UNCONFIRMED))


def failed_retries(request: HttpRequest, run: RequeueRun) -> list[EarlyRetry]:
    """Return the first retries that failed again; none for a user for whom each message has to be checked."""
    if has_own_rules(request.user):
        return []
    return list(EarlyRetry.objects.filter(run=run, state=ItemState.FAILED).order_by("pk")[:MOST_ITEMS])


def left_out(request: HttpRequest, run: RequeueRun) -> list[Alike]:
    """Return each reason for which messages were left out, with their number and the first of them."""
    skipped = RequeueItem.objects.filter(run=run, state=ItemState.SKIPPED)
    counts = skipped.order_by().values_list("skip_code").annotate(count=Count("pk")).order_by("-count")
    found = [(code, count, _first(request, skipped.filter(skip_code=code))) for code, count in counts]
    return [part for code, count, items in found for part in _parts(request, run, code, count, items)]


def _parts(request: HttpRequest, run: RequeueRun, code: str, count: int, items: list[RequeueItem]) -> Iterator[Alike]:
    """Yield those left out for one reason: by the message because of which they were, if it was another one."""
    by_other: dict[int, list[RequeueItem]] = {}
    others = kept_back_by(run, code, [one.message for one in items])
    for one in items:
        other = others.get(one.message_id)
        if other is not None and not refusal(request, "view", message=other):
            by_other.setdefault(other.pk, []).append(one)
    shown = dict(islice(by_other.items(), MOST_OTHERS))
    known = {other.pk: other for other in others.values()}
    for pk, some in shown.items():
        yield Alike(code, keeps_back(run, code, known[pk]), len(some), some, other=known[pk])
    named = {one.pk for some in shown.values() for one in some}
    if count > len(named):
        rest = [one for one in items if one.pk not in named]
        examples = [(one.message_id, str(one.message)) for one in rest[:MOST_DECISIONS]]
        decisions = decisions_on(examples) if code in DECIDED else []
        decided = {pk for pk, _name, _sentence in decisions}
        rest = [one for one in rest if one.message_id not in decided]
        yield Alike(code, _reason(run, code, items), count - len(named), rest, decisions)


def _first(request: HttpRequest, items: QuerySet[RequeueItem]) -> list[RequeueItem]:
    """Return the first items, without those whose message the user may not see."""
    if has_own_rules(request.user):
        known = items.select_related("message", "message__group").defer("message__body", "message__properties")
    else:
        known = items.select_related("message").only("message", *(f"message__{column}" for column in SHOWN))
    rows = known.order_by("place")[:MOST_ITEMS]
    return [one for one in rows if not refusal(request, "view", message=one.message)]


def _reason(run: RequeueRun, code: str, items: list[RequeueItem]) -> str:
    """Return the reason, with the other requeue runs if these sent the messages."""
    if code != ItemReason.SENT_BEFORE:
        return str(dict(ItemReason.choices).get(code, code))
    others = set(sent_by_others(run, [one.message_id for one in items]).values())
    text = _("Sent before by requeue run %(run)s of %(who)s.")
    named = [text % {"run": one.pk, "who": one.who} for one in RequeueRun.objects.filter(pk__in=others).order_by("pk")]
    return " ".join(named) or str(ItemReason.SENT_BEFORE.label)
