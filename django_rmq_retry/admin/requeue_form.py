"""The preview of a requeue. A page that is shown again keeps everything that was typed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look, labels, places
from django_rmq_retry.admin.cards import names_of
from django_rmq_retry.admin.choice import (
    LeftOut,
    again,
    back_of,
    choosing,
    forbidden,
    kept_back,
    rules_note,
    sample,
    with_seen_examples,
)
from django_rmq_retry.admin.pages import Button, Pages, migrated, refusal, requires
from django_rmq_retry.admin.queues import StoppedBadge, StoppedQueues
from django_rmq_retry.admin.requests import AskedFor, asked_for
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import ErrorGroup, ItemReason, ParkedMessage
from django_rmq_retry.parked import awaited, operators
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.findings import (
    RequeueFinding,
    RequeueReport,
    RequeueTerms,
    first_sendable,
    lacks_reason_for_risk,
    report,
)
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.groups import grows, parked_lately, settled_at
from django_rmq_retry.parked.items import left_behind
from django_rmq_retry.parked.key_text import text_of_keys
from django_rmq_retry.parked.operators import Actor, Refused, lacks_reason
from django_rmq_retry.parked.other_handlers import handlers_of_queues
from django_rmq_retry.parked.outcome_texts import copies_of, decided_meanwhile, decisions_since
from django_rmq_retry.parked.requeue import TYPED_FROM, start
from django_rmq_retry.parked.requeue_options import DEFAULT_RATE, NO_TARGETS, STOP_AT, RequeueOptions, checked_target
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.parked.twins import Twins, each
from django_rmq_retry.parked.under_way import UnderWay, paused_too, under_way
from django_rmq_retry.wording import counted

TAKEN_BY_NOBODY = {"unhandled", "untaken"}
"""The findings on messages that no handler of this project would take, so sending them does nothing."""
DEEPEST = 1000
"""Messages in a queue above which a run waits, unless the operator chooses another limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueForm:
    """What an operator has entered before messages are requeued."""

    options: RequeueOptions = field(default_factory=lambda: RequeueOptions(max_depth=DEEPEST))
    reason: str = ""
    typed: str = ""
    checked_target: str = ""
    """The target whose checks the page has shown."""

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
        typed, checked = entered.get("typed", "").strip(), entered.get("checked_target", "")
        return cls(options=options, reason=reason, typed=typed, checked_target=checked)

    @property
    def target_unchecked(self) -> str:
        """Return why nothing is sent to a target before its checks were shown; empty if they were."""
        if self.options.target == self.checked_target:
            return ""
        try:
            checked_target(self.options.target)
        except Refused as refused:
            return str(refused)
        return _(
            "Nothing was sent yet: you chose another queue, and its checks were not shown. They are shown now: check "
            "them and press the button again."
        )


@migrated
@requires("requeue")
@choosing(gettext_lazy("Requeue"))
def preview(pages: Pages, request: HttpRequest, selection: Selection, left: LeftOut) -> HttpResponse:
    """Show the messages to send and the objections; start the requeue run if that button was pressed."""
    form = RequeueForm.read(request)
    shown = selection.looked_at(left.effect.records) if left.effect else selection
    terms = replace(form.options.terms, kept_back=kept_back(request, "requeue", shown))
    found = report(shown, terms)
    why_not = forbidden(request, shown, "requeue")
    wrong = {"except": left.wrong} if left.wrong else {}
    if request.method == "POST" and "start" in request.POST:
        sent, of_sent, why_not_sent = selection, found, why_not
        if request.POST["start"] == "one":
            sent = _first(selection, terms)
            of_sent, why_not_sent = report(sent, terms), forbidden(request, sent, "requeue")
        if why_not_sent:
            return pages.refused(request, why_not_sent)
        if form.target_unchecked:
            # What else is wrong is told once the checks of this target were seen.
            wrong = {"target": form.target_unchecked}
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
    by_keys = left.effect.messages if left.effect else 0
    values = _page_values(pages, request, shown, form, found, by_keys=by_keys)
    return pages.page(
        request,
        "requeuerun/preview.html",
        **values,
        status=422 if wrong else 200,
        again=again(request, selection) if "all" in wrong else "",
        back=back_of(pages, request, selection),
        left=left,
        wrong=wrong,
        forbidden=why_not,
        disabled=bool(why_not) or not found.sendable or bool(values["look"].unreachable),
    )


def _page_values(
    pages: Pages, request: HttpRequest, selection: Selection, form: RequeueForm, found: RequeueReport, *, by_keys: int
) -> dict[str, Any]:
    """Return what the page shows; ``by_keys`` messages of the choice are left out by their keys."""
    look = broker_look.look()
    many = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", found.sendable)
    queues, takers = registry.topology().queues, handlers_of_queues()
    others = [finding for finding in found.findings if finding.name != "permanent"]
    groups = _groups(selection, found)
    only = selection.queryset().defer("body", "properties").first() if found.total == 1 else None
    seen = [only] if only and not refusal(request, "view", message=only) else []
    oldest = seen[: found.sendable] if only else sample(request, selection, left_out=found.refused)
    names = names_of([group for group, _count in groups])
    growing = _growing(groups)
    # Who requeues all of a group has chosen on its card not to test one first, but without what a check has left out.
    all_at_once = selection.group is not None and not any(finding.overruled for finding in found.findings)
    tests_first = form.options.canary or bool(growing["growing"]) or not all_at_once
    runs = under_way(selection.queryset(), counted=found.under_way)
    asked = asked_for(request, selection.queryset())
    leads = _next_page(pages, request, selection, found, runs) or _awaited(pages, request, found, asked)
    twins = _beside(request, selection, found, oldest)
    return {
        "title": _title_of(seen[0], found) if seen else _title(found, found.total + by_keys),
        "leads": leads,
        "main": "" if leads else _main(found, look, tests_first=tests_first),
        "paused_too": paused_too(runs) if found.sendable else "",
        "selection": selection,
        "chosen": labels.selection_text(selection.facts(), causes=False),
        "causes": [(group.pk, names[group.pk], count) for group, count in groups],
        **growing,
        "tests_first": tests_first,
        "under_way": runs,
        "left_behind": left_behind(selection.queryset(), [group.pk for group, _count in groups]),
        "asked_for": asked,
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
        # The terms of a run say nothing about one message, nor where none would be sent.
        "single": selection.alone or found.total == 1 or not found.sendable,
        "copies": _copies(request, only) if only else [],
        "decisions": decisions_since(selection) if any(_is_unexplained(one) for one in others) else [],
        "others": found.sendable - 1,
        "why_not_one": refusal(request, "requeue"),
        "rules_note": rules_note(request, selection),
        "number_to_type": number_to_type(found.sendable),
        "reason_needed": bool(found.sendable and (lacks_reason(found.total, "") or found.risky)),
        "seconds": found.sendable / form.options.rate if form.options.rate else None,
        "targets": {name: takers.get(name, ()) for name, one in queues.items() if one.role not in NO_TARGETS},
        "beside": places.with_addresses(pages, each(twins)),
        "beside_keys": text_of_keys(twins),
        "nobody_takes": _taken_by_nobody(found),
        "discard": _discard(pages, request, selection, found),
        "sample": oldest,
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


def _growing(groups: Sequence[tuple[ErrorGroup, int]]) -> dict[str, Any]:
    """Return the new failures in those of the groups that grow, and since when: what is sent may fail too."""
    lately = parked_lately([group.pk for group, _count in groups], buckets=1)
    newest, now = lately.newest, database_clock.now(records_alias())
    growing = [
        group.pk
        for group, _count in groups
        if grows(newest[group.pk], group.last_new or group.last_seen, now, settled=settled_at(group.last_handled))
    ]
    since = min((lately.began[group] for group in growing), default=None)
    return {"growing": sum(newest[group] for group in growing), "growing_since": since}


def _title_of(message: ParkedMessage, found: RequeueReport) -> str:
    """Return what is done with the only message."""
    return (_("Requeue %(name)s") if found.sendable else _("Nothing to requeue: %(name)s")) % {"name": message}


def _title(found: RequeueReport, chosen: int) -> str:
    """Return how many of the chosen messages would be sent, as its button has it."""
    if chosen and not found.sendable:
        text = ngettext("Nothing to requeue of %(count)d message", "Nothing to requeue of %(count)d messages", chosen)
    elif found.sendable < chosen:
        text = ngettext("Requeue %(sent)d of %(count)d message", "Requeue %(sent)d of %(count)d messages", chosen)
    else:
        text = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", chosen)
    return counted(text, count=chosen, sent=found.sendable)


def _next_page(
    pages: Pages,
    request: HttpRequest,
    selection: Selection,
    found: RequeueReport,
    runs: Sequence[UnderWay],
) -> list[Button]:
    """Return the main button if the next step is on another page: at a run that has them, or at the end of a hold.

    Of two runs that have a message the first one sends it, so two operators who both start one don't know whose it was.
    """
    open_runs = [one.run for one in runs if one.paused or found.only_reason == "under_way"]
    if open_runs:
        return pages.button_of_run(request, open_runs[-1])
    if found.only_reason != "on_hold" or refusal(request, "unhold", count=found.total):
        return []
    if selection.alone:
        (pk,) = selection.revisions
        return [Button(label=_("Take off hold…"), address=pages.address("parkedmessage_unhold", pk), kind="main")]
    address = f"{pages.address('parkedmessage_unhold_many')}?{urlencode({'sel': selection.token()})}"
    return [Button(label=counted(_("Take %(count)d off hold…"), count=found.total), address=address, kind="main")]


def _awaited(pages: Pages, request: HttpRequest, found: RequeueReport, asked: Sequence[AskedFor]) -> list[Button]:
    """Return the main button if nothing is sent because all of it waits for a second person, who decides there."""
    why = {one.name for one in found.findings if one.left_out}
    open_requests = [one.known for one in asked if one.known.act in awaited.ACTS]
    if found.sendable or not open_requests or why - {*awaited.FINDINGS} or refusal(request, "view_request"):
        return []
    first, *others = open_requests
    if not others:
        label, address = _("Open request %(number)s") % {"number": first.pk}, "approvalrequest_change"
        return [Button(label=label, address=pages.address(address, first.pk), kind="main")]
    count = len(open_requests)
    label = counted(ngettext("Open %(count)d request", "Open %(count)d requests", count), count=count)
    return [Button(label=label, address=pages.address("approvalrequest_changelist"), kind="main")]


def _main(found: RequeueReport, look: broker_look.Look, *, tests_first: bool) -> str:
    """Return the value of the page's own main button; empty if it has none."""
    if not found.sendable:
        return "fixed" if found.only_reason == "permanent" else ""
    if look.unreachable:
        return "planned"
    return "canary" if tests_first and found.sendable > 1 else "now"


def _beside(request: HttpRequest, selection: Selection, found: RequeueReport, oldest: Sequence[ParkedMessage]) -> Twins:
    """Return what will be handled anyway and has the keys of the messages to send, if these are few, and all seen."""
    if refusal(request, "view") or operators.has_own_rules(request.user):
        return {}
    return places.beside_sent(request, selection, found, oldest)


def _taken_by_nobody(found: RequeueReport) -> list[RequeueFinding]:
    """Return why nothing is sent, if that is because no handler of this project would take any of the messages."""
    why = [one for one in found.findings if one.left_out]
    return [] if found.sendable or any(one.name not in TAKEN_BY_NOBODY for one in why) else why


def _discard(pages: Pages, request: HttpRequest, selection: Selection, found: RequeueReport) -> list[Button]:
    """Return the button that discards the messages, if no handler takes them."""
    if not _taken_by_nobody(found) or refusal(request, "discard", count=found.total):
        return []
    address = f"{pages.address('parkedmessage_discard')}?{urlencode({'sel': selection.token()})}"
    return [Button(label=counted(_("Discard %(count)d…"), count=found.total), address=address)]


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
    if not findings.sendable:
        return {"all": _("Nothing is left to requeue.")}
    wrong = missing_confirmations(chosen=findings.total, sent=findings.sendable, reason=form.reason, typed=form.typed)
    if why := lacks_reason_for_risk(findings, form.reason):
        wrong = {"reason": why} | wrong
    return wrong


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
