"""The preview of a requeue. A page that is shown again keeps everything that was typed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look, labels
from django_rmq_retry.admin.cards import names_of
from django_rmq_retry.admin.choice import (
    LeftOut,
    again,
    choosing,
    forbidden,
    kept_back,
    rules_note,
    sample,
    with_seen_examples,
)
from django_rmq_retry.admin.pages import Pages, migrated, refusal, requires
from django_rmq_retry.admin.queues import StoppedBadge, StoppedQueues
from django_rmq_retry.admin.requests import asked_for
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.handlers import registry
from django_rmq_retry.markup import counted
from django_rmq_retry.models import ErrorGroup, ItemReason, ParkedMessage, RequeueRun, RunState, State
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.findings import RequeueFinding, RequeueReport, RequeueTerms, first_sendable, report
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.groups import grows, parked_lately
from django_rmq_retry.parked.items import left_behind, under_way
from django_rmq_retry.parked.operators import Actor, Refused, lacks_reason
from django_rmq_retry.parked.outcome_texts import copies_of, decided_meanwhile, decisions_since
from django_rmq_retry.parked.requeue import TYPED_FROM, start
from django_rmq_retry.parked.requeue_options import DEFAULT_RATE, NO_TARGETS, STOP_AT, RequeueOptions
from django_rmq_retry.parked.selection import EXCEPT, Selection

DEEPEST = 1000
"""Messages in a queue above which a run waits, unless the operator chooses another limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueForm:
    """What an operator has entered before messages are requeued."""

    options: RequeueOptions = field(default_factory=lambda: RequeueOptions(max_depth=DEEPEST))
    reason: str = ""
    typed: str = ""

    @classmethod
    def read(cls, request: HttpRequest) -> "RequeueForm":
        """Read the submitted form; a number that is invalid is replaced by its default."""
        entered = request.POST if request.method == "POST" else request.GET
        reason = entered.get("reason", "").strip()
        if request.method != "POST" and "rate" not in entered:
            held = [ItemReason.ON_HOLD.value] if request.GET.get("held") else []
            return cls(
                options=RequeueOptions(max_depth=DEEPEST, canary=bool(request.GET.get("canary")), include=held),
                reason=reason,
            )
        pressed = entered.get("start", "")
        include = set(entered.getlist("include"))
        if toggled := entered.get("toggle"):
            include ^= {toggled}
        options = RequeueOptions(
            rate=typed_number(entered.get("rate"), DEFAULT_RATE),
            max_depth=int(typed_number(entered.get("max_depth"), DEEPEST)) if entered.get("wait") else None,
            stop_at=typed_number(entered.get("stop_at"), STOP_AT) if entered.get("guard") else None,
            target=entered.get("target", ""),
            one_by_one=entered.get("order") == "key",
            canary=pressed == "canary" or (pressed in ("", "planned") and bool(entered.get("canary"))),
            include=include,
            confirmed_permanent=bool(entered.get("fixed")),
            planned=pressed == "planned",
        )
        return cls(options=options, reason=reason, typed=entered.get("typed", "").strip())


@migrated
@requires("requeue")
@choosing(gettext_lazy("Requeue"))
def preview(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponse:
    """Show the messages to send and the objections; start the requeue run if that button was pressed."""
    form = RequeueForm.read(request)
    terms = replace(form.options.terms, kept_back=kept_back(request, "requeue", selection))
    found = report(selection, terms)
    why_not = forbidden(request, selection, "requeue")
    wrong = {"except": left.wrong} if left.wrong else {}
    if request.method == "POST" and "start" in request.POST:
        sent, of_sent, why_not_sent = selection, found, why_not
        if request.POST["start"] == "one":
            sent = _first(selection, terms)
            of_sent, why_not_sent = report(sent, terms), forbidden(request, sent, "requeue")
        if why_not_sent:
            return pages.refused(request, why_not_sent)
        wrong = wrong or ({"checked": left.unchecked} if left.unchecked else {}) | _wrong(form, of_sent)
        if not wrong:
            try:
                run = start(sent, Actor.of_request(request), form.options, reason=form.reason)
                return HttpResponseRedirect(pages.address("requeuerun_change", run.pk))
            except SecondPersonNeeded as needed:
                return pages.ask(request, needed)
            except Refused as refused:
                wrong = {"all": str(refused)}
    if wrong.get("all") and not found.sendable:
        wrong["all"] = " ".join([wrong["all"], decided_meanwhile(selection)]).strip()
    values = _page_values(pages, request, selection, form, found)
    return pages.page(
        request,
        "requeuerun/preview.html",
        **values,
        status=422 if wrong else 200,
        again=again(request, selection) if "all" in wrong else "",
        left=left,
        wrong=wrong,
        forbidden=why_not,
        disabled=bool(why_not) or not found.sendable or bool(values["look"].unreachable),
    )


def _page_values(
    pages: Pages, request: HttpRequest, selection: Selection, form: RequeueForm, found: RequeueReport
) -> dict[str, Any]:
    look = broker_look.look()
    left = found.total - found.under_way or found.total
    title = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", left)
    many = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", found.sendable)
    queues = registry.topology().queues
    others = [finding for finding in found.findings if finding.name != "permanent"]
    groups = _groups(selection, found)
    only = selection.queryset().defer("body", "properties").first() if found.total == 1 else None
    seen = [only] if only and not refusal(request, "view", message=only) else []
    names = names_of([group for group, _count in groups])
    growing = _growing(groups)
    return {
        "title": _("Requeue %(name)s") % {"name": only} if seen else counted(title, count=left),
        "selection": selection,
        "chosen": labels.selection_text(selection.facts(), causes=False),
        "causes": [(group.pk, names[group.pk], count) for group, count in groups],
        **growing,
        "tests_first": form.options.canary or bool(growing["growing"]),
        "under_way": _under_way(selection, found),
        "left_behind": left_behind(selection.queryset(), [group.pk for group, _count in groups]),
        "asked_for": asked_for(request, selection.queryset()),
        "opens_requests": not refusal(request, "view_request"),
        "token": selection.token(),
        "form": form,
        "report": found,
        "findings": [
            (with_seen_examples(request, finding), finding.name in form.options.include) for finding in others
        ],
        "permanent": next((finding for finding in found.findings if finding.name == "permanent"), None),
        "button": counted(many, count=found.sendable),
        "alone": selection.alone,
        "single": selection.alone or found.total == 1,
        "unhold": _unhold(pages, request, only) if only else "",
        "copies": _copies(request, only) if only else [],
        "decisions": decisions_since(selection) if any(_is_unexplained(one) for one in others) else [],
        "others": found.sendable - 1,
        "why_not_one": refusal(request, "requeue"),
        "rules_note": rules_note(request, selection),
        "number_to_type": number_to_type(found.sendable),
        "reason_needed": bool(lacks_reason(found.total, "")),
        "seconds": found.sendable / form.options.rate if form.options.rate else None,
        "targets": [name for name, one in queues.items() if one.role not in NO_TARGETS],
        "sample": seen[: found.sendable] if only else sample(request, selection, left_out=found.refused),
        "look": look,
        "levels": targets_of(found.queues, look),
    }


def _is_unexplained(finding: RequeueFinding) -> bool:
    return finding.name == "gone" and not finding.examples


def _groups(selection: Selection, found: RequeueReport) -> list[tuple[ErrorGroup, int]]:
    """Return the error groups of a selection, each with the number of its messages; the largest first."""
    counts = found.groups if selection.group is None else ((selection.group, found.total),)
    groups = ErrorGroup.objects.in_bulk([group for group, _count in counts])
    return [(groups[group], count) for group, count in counts if group in groups]


def still_failing(selection: Selection, found: RequeueReport) -> dict[str, Any]:
    """Return what the preview says of causes that still grow: who approves a requeue must know it, too."""
    return _growing(_groups(selection, found))


def _under_way(selection: Selection, found: RequeueReport) -> list[tuple[RequeueRun, int]]:
    """Return the active runs that are to send some of the messages; what one sends now is counted as in the finding.

    The run goes on between two queries, and one page must not have two numbers.
    """
    runs = under_way(selection.queryset())
    sending = [run for run, _count in runs if run.state != RunState.PAUSED]
    if len(sending) != 1 or not found.under_way:
        return runs
    return [(run, found.under_way if run in sending else count) for run, count in runs]


def _growing(groups: Sequence[tuple[ErrorGroup, int]]) -> dict[str, Any]:
    """Return the new failures in those of the groups that grow, and since when: what is sent may fail too."""
    lately = parked_lately([group.pk for group, _count in groups], buckets=1)
    newest, now = lately.newest, database_clock.now(records_alias())
    growing = [group.pk for group, _count in groups if grows(newest[group.pk], group.last_seen, now)]
    since = min((lately.began[group] for group in growing), default=None)
    return {"growing": sum(newest[group] for group in growing), "growing_since": since}


def _unhold(pages: Pages, request: HttpRequest, message: ParkedMessage) -> str:
    """Return where the hold of the only message ends: what is on hold is not sent. Empty if the user may not end it."""
    held = message.state == State.ON_HOLD and not refusal(request, "unhold", message=message)
    return pages.address("parkedmessage_unhold", message.pk) if held else ""


def _copies(request: HttpRequest, message: ParkedMessage) -> list[tuple[ParkedMessage, str]]:
    """Return the copies of the only message that the user may see, each with what became of it."""
    return [one for one in copies_of(message) if not refusal(request, "view", message=one[0])]


def _first(selection: Selection, terms: RequeueTerms) -> Selection:
    """Return a selection of the one message that would be sent first."""
    first = first_sendable(selection, terms)
    return Selection.of_ids([] if first is None else [first]).leaving_out(selection.filter.get(EXCEPT))


def typed_number(text: str | None, otherwise: float) -> float:
    """Return the typed number if it is finite and not negative, else the default."""
    try:
        value = float((text or "").replace(",", "."))
    except ValueError:
        return otherwise
    return value if 0 <= value < float("inf") else otherwise


def missing_confirmations(*, chosen: int, sent: int, reason: str, typed: str) -> dict[str, str]:
    """Return the messages for fields that a large run needs: a reason, and the number of messages."""
    without = lacks_reason(chosen, reason)
    wrong = {"reason": without} if without else {}
    mistyped = number_mistyped(sent, typed)
    return {**wrong, "typed": mistyped} if mistyped else wrong


def number_to_type(count: int) -> int:
    """Return the number of messages if it must be typed before something is done with so many of them, else 0."""
    return count if count > TYPED_FROM else 0


def number_mistyped(count: int, typed: str) -> str:
    """Return what to type before something is done with so many messages; empty if it was typed, or need not be."""
    if not number_to_type(count) or typed.replace(",", "").replace(" ", "") == str(count):
        return ""
    return _("Type %(count)d to confirm the number of messages.") % {"count": count}


def _wrong(form: RequeueForm, findings: RequeueReport) -> dict[str, str]:
    wrong = missing_confirmations(chosen=findings.total, sent=findings.sendable, reason=form.reason, typed=form.typed)
    return wrong if findings.sendable else {**wrong, "all": _("Nothing is left to requeue.")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A queue that messages would go to, with their number and the state of the queue."""

    queue: str
    count: int
    level: Level | None
    problems: list[str]
    stopped: StoppedBadge | None

    @property
    def ready(self) -> bool:
        """True if the queue's messages are handled as soon as they arrive."""
        return bool(self.level and self.level.consumers and not self.stopped)


def targets_of(counts: Sequence[tuple[str, int]], look: broker_look.Look) -> list[Target]:
    """Return the queues that messages would go to, the one with the most messages first."""
    queues = counts[:5]
    stopped = StoppedQueues.among(queue for queue, _count in queues)
    problems = {one.level.queue: [problem.row for problem in one.errors] for one in stopped.judged(look.levels)}
    return [
        Target(
            queue=queue,
            count=count,
            level=look.level(queue),
            problems=problems.get(queue, []),
            stopped=stopped.badges.get(queue),
        )
        for queue, count in queues
    ]
