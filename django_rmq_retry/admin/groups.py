"""Error groups: one row for each cause, and its notes."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import models
from django.db.models import ExpressionWrapper, F, Max, Min, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _

from django_rmq_retry.admin import broker_look, labels
from django_rmq_retry.admin.cards import Card, cards_of, is_permanent, plain_words, trends_of
from django_rmq_retry.admin.contents import body_of
from django_rmq_retry.admin.labels import LEFT_OUT
from django_rmq_retry.admin.pages import Button, Pages, edits, refusal, requires
from django_rmq_retry.admin.requests import asked_for, in_words
from django_rmq_retry.admin.timeline import CHANGED, activity, latest, timeline
from django_rmq_retry.attempts.history import attempts_of
from django_rmq_retry.markup import Count
from django_rmq_retry.models import (
    Action,
    Attempt,
    ErrorGroup,
    OperatorAction,
    ParkedMessage,
    ParkedOrigin,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import SAID
from django_rmq_retry.parked import early_runs, operators
from django_rmq_retry.parked.audit import acts_in, newest_acts, runs_with
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.early_choice import RetryFilter
from django_rmq_retry.parked.early_retries import waiting_for
from django_rmq_retry.parked.edit import may_be_edited
from django_rmq_retry.parked.edit_many import MOST_EDITED, too_many
from django_rmq_retry.parked.findings import FINDING_TEXTS, RequeueTerms, sends_any
from django_rmq_retry.parked.groups import (
    FAILED_AGAIN,
    LIMITS,
    Origin,
    annotate,
    last_parked,
    mute,
    still_failing,
    with_held,
)
from django_rmq_retry.parked.items import left_behind
from django_rmq_retry.parked.links import group_links
from django_rmq_retry.parked.may_have_run import with_perhaps_handled
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import number_in
from django_rmq_retry.parked.under_way import under_way
from django_rmq_retry.parked.unsent_edits import edited_unsent
from django_rmq_retry.wording import counted

PER_PAGE = 25
MOST_TYPES = 8
MOST_LISTED = 10
"""Messages on the page of their group: the list of messages has all of them."""
MOST_EVENTS = 12
"""Of the one message that the page of a group shows."""
LESSER = ("parkedmessage_hold", "parkedmessage_unhold_many", "parkedmessage_edit_many")
"""Pages of the acts that few operators need on the page of a group."""
CAUSE_FIXED = RequeueTerms(confirmed_permanent=True)
"""A page offers a requeue of permanent errors too, because it can't know that their cause is fixed."""


@requires("view_group", "note")
def note(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    group = ErrorGroup.objects.filter(pk=pk).first()
    if group is None:
        raise Http404(_("There is no such error group."))
    if request.method != "POST":
        note_of = _("Note")
        return pages.page(request, "errorgroup/note.html", title=f"{note_of}: {group}", group=group)
    texts = {name: request.POST[name].strip() for name in LIMITS if name in request.POST}
    muted = bool(request.POST.get("muted"))
    try:
        annotate(pk, Actor.of_request(request), **texts)
        if muted != group.muted:
            mute(pk, Actor.of_request(request), muted=muted)
    except Refused as refused:
        messages.warning(request, str(refused))
    else:
        messages.success(request, _("The note is saved."))
    return HttpResponseRedirect(pages.address("errorgroup_change", pk))


@admin.register(ErrorGroup)
class ErrorGroupAdmin(Pages):
    """The list of error groups, to which alerts link, and the page of one error group."""

    sees = "view_group"

    def own_urls(self) -> list[URLPattern]:
        return [
            self.own_url("help/", "help", self.help),
            self.own_url("<int:pk>/note/", "note", partial(note, self)),
        ]

    def help(self, request: HttpRequest) -> HttpResponse:
        """Show the dialog behind `?` as a page, for every user of the site."""
        return self.page(request, "errorgroup/help.html", title=_("Keyboard shortcuts and my permissions"))

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        by = request.GET.get("by", "")
        if by in ("queue", "type"):
            return self._by(request, by)
        asked, show = request.GET.get("q", "").strip(), request.GET.get("show", "parked")
        page = Paginator(_with_origin(_chosen(asked, show)), PER_PAGE).get_page(request.GET.get("p"))
        groups = _with_edits(list(page.object_list))
        parked = ParkedMessage.objects.filter(state=State.PARKED)
        summary = ErrorGroup.objects.aggregate(
            groups=models.Count("pk", filter=Q(parked__gt=0)),
            waiting=Coalesce(Max(ParkedOrigin.objects.total()), 0),
            held=Greatest(Coalesce(Sum("parked"), 0) - F("waiting"), 0),
            last=Max("last_seen"),
            oldest=Min(Subquery(parked.order_by("parked_at").values("parked_at")[:1])),
        )
        cards = cards_of(groups, of=int(summary["waiting"]))
        # All cards have the same addresses, and Django looks each of them up anew.
        address = cache(self.address)
        requests = {one.pk: one for card in cards for one in card.asked_for}
        asked_for = {one.known.pk: one for one in in_words(request, [(one, 0) for one in requests.values()])}
        return self.page(
            request,
            "errorgroup/list.html",
            part="parts/groups.html",
            look=broker_look.glimpse(),
            title=_("Error groups"),
            cards=[
                (
                    card,
                    _ready(card.group),
                    *self._card_buttons(request, card, address),
                    [asked_for[one.pk] for one in card.asked_for],
                )
                for card in cards
            ],
            tells=not (refusal(request, "view") or operators.has_own_rules(request.user)),
            acts=self._acts(request) if any(_ready(card.group) for card in cards) else [],
            opens_requests=not refusal(request, "view_request"),
            page=page,
            summary=summary,
            asked=asked,
            show=show,
            by="",
        )

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        number = number_in(object_id)
        groups = _with_origin(with_held(ErrorGroup.objects.all()))
        group: Any = None if number is None else groups.filter(pk=number).first()
        if group is None:
            raise Http404(_("There is no such error group."))
        _with_edits([group])
        no_trace = refusal(request, "view_traceback")
        types, origins = _shares(group)
        handlers = {origin.handler for origin, _count in origins}
        trace, deploys = latest(group.fingerprint, handlers, traced=not no_trace)
        no_trace = no_trace or (_kept_back(request, trace.attempt) if trace else "")
        parked = ParkedMessage.objects.filter(group=group.pk, state=State.PARKED).order_by("-parked_at", "-pk")
        main = origins[0][0] if origins else Origin("", "")
        newest = () if refusal(request, "view") else parked.defer(*LEFT_OUT)[:MOST_LISTED]
        seen = [one for one in newest if not refusal(request, "view", message=one)]
        labels.with_failures(seen)
        queues = len({origin.queue for origin, _count in origins})
        cells = labels.cells_in_group(types=len(types), queues=queues, marked=any(map(labels.marks, seen)))
        moving = under_way(parked)
        run = moving[-1].run if moving else None
        buttons, menu = self._page_buttons(request, group, run)
        # A request for messages of several groups names none of them.
        acts = newest_acts([one.pk for one in seen], CHANGED.keys())
        numbers = {act.number for some in acts.values() for act in some}
        known = _with_runs(request, group, numbers)
        return self.page(
            request,
            "errorgroup/group.html",
            title=str(group),
            group=group,
            ready=_ready(group),
            failed_again=still_failing(group),
            card=Card(group=group, trend=trends_of([group.pk])[group.pk], plain=plain_words(group), run=run),
            moved=next(((message, there) for message in seen if (there := labels.failed_in(message))), None),
            perhaps_handled=FINDING_TEXTS["worker_stopped"] % {"count": group.perhaps} if group.perhaps else "",
            buttons=buttons,
            menu=menu,
            links=labels.links(group_links(group, queue=main.queue, handler=main.handler, kind=group.type or "")),
            why_no_trace=no_trace,
            trace=trace,
            trace_left=trace is not None and trace.attempt.handler not in handlers,
            deploys=deploys,
            types=types,
            untyped=[name for name, _count in types] == [""],
            origins=[self._origin(request, group, origin, count) for origin, count in origins],
            under_way=moving,
            left_behind=left_behind(parked, [group.pk]),
            asked_for=asked_for(request, parked),
            opens_requests=not refusal(request, "view_request"),
            waits=[
                (queue, count, early_runs.under_way(queue, RetryFilter(group=(group.pk,))))
                for queue, count in waiting_for(group)
            ],
            may_send=not refusal(request, "view_run", "send_waiting"),
            rows=[(one, [cell(one) for cell in cells]) for one in seen],
            columns=[cell.short_description for cell in cells],
            **_example(request, seen, acts),
            # The page has the note itself.
            last_act=next(((act, why) for act, why in known["activity"] if act.action != Action.NOTE), None),
            **known,
        )

    def _by(self, request: HttpRequest, by: str) -> HttpResponse:
        """Show the same messages by queue or message type in place of their cause."""
        times = ParkedMessage.objects.filter(**{"state": State.PARKED, by: OuterRef(by)}).values("parked_at")
        rows = (
            ParkedOrigin.objects.filter(count__gt=0)
            .values(by)
            .annotate(
                parked=Sum("count"),
                first=Subquery(times.order_by("parked_at")[:1]),
                last=Subquery(times.order_by("-parked_at")[:1]),
            )
        )
        return self.page(
            request,
            "errorgroup/list.html",
            title=_("Error groups"),
            by=by,
            counted=[{**row, "name": row[by]} for row in rows.order_by("-parked")[:100]],
            show="parked",
        )

    def _acts(self, request: HttpRequest) -> list[tuple[str, str]]:
        """Return the actions that the user may do on all ticked groups together: label and address of each."""
        acts = (
            (_("Requeue the ticked…"), "requeue", "requeuerun_preview"),
            (_("Hold the ticked…"), "hold", "parkedmessage_hold"),
            (_("Discard the ticked…"), "discard", "parkedmessage_discard"),
        )
        return [(label, self.address(page)) for label, verb, page in acts if not refusal(request, verb)]

    def _buttons(
        self, request: HttpRequest, group: Any, address: Callable[[str], str], *, own_page: bool = False
    ) -> list[Button]:
        """Return the actions on the cause; on its own page also those that are not allowed, with the reason."""
        ready = _ready(group)
        editing = (_("Edit %(count)d…"), "bulk_edit", "parkedmessage_edit_many", "")
        one_first = (_("Requeue one, then the others…"), "requeue", "requeuerun_preview", "&canary=1")
        beyond_edit = too_many() if ready > MOST_EDITED else ""
        why_no_edit = beyond_edit or refusal(request, "bulk_edit", count=ready)
        edited, handled = group.edited >= ready, group.handled >= ready
        # It fails the same way again, and this project lets people cure it.
        curable = is_permanent(group) and (may_be_edited(group.type) if group.type else edits())
        edited_first = curable and not why_no_edit and not edited
        requeue = (_("Requeue %(count)d…") if ready > 1 else _("Requeue…"), "requeue", "requeuerun_preview", "")
        # Its page asks whether a requeue would send any; a card, whether all were, or may have been, handled already,
        # which is cheap.
        died = group.perhaps >= ready and not own_page
        idle = handled or died or (own_page and bool(ready) and not sends_any(group.pk, CAUSE_FIXED))
        # What fails the same way again is no main action.
        leads = own_page and not idle and (edited or edited_first or not is_permanent(group))
        # Edited ones are ready to be sent, all of them.
        one_by_one = [] if ready <= 1 or idle else [one_first]
        actions = (
            *([editing] if edited_first else []),
            *([requeue, *one_by_one] if edited else [*one_by_one, requeue]),
            (_("Hold…"), "hold", "parkedmessage_hold", ""),
            *([editing] if own_page and edits() and not edited_first else []),
            (_("Discard %(count)d…"), "discard", "parkedmessage_discard", ""),
        )
        buttons = [
            Button(
                label=counted(label, count=ready),
                address=f"{address(page)}?group={group.pk}{more}",
                why=why_no_edit if verb == "bulk_edit" else refusal(request, verb, count=1 if more else ready),
                kind="main" if leads and place == 0 else "danger" if verb == "discard" else "",
            )
            for place, (label, verb, page, more) in enumerate(actions)
            if ready
        ]
        if own_page:
            note = Button(
                label=_("Note…"), address=self.address("errorgroup_note", group.pk), why=refusal(request, "note")
            )
            unhold = Button(
                label=counted(_("Take %(count)d off hold…"), count=group.held),
                address=f"{address('parkedmessage_unhold_many')}?group={group.pk}&state={State.ON_HOLD}",
                why=refusal(request, "unhold", count=group.held),
            )
            # A discard stays the last one.
            return [*buttons[:-1], *([unhold] if group.held else []), note, *buttons[-1:]]
        return [button for button in buttons if not button.why]

    def _card_buttons(
        self, request: HttpRequest, card: Card, address: Callable[[str], str]
    ) -> tuple[list[Button], list[Button]]:
        """Return the actions of a card: those it shows, and those in its menu.

        A card of one message has no menu: the page of the group has the others. While a run has to send some of its
        messages, its note leads to the run, so that all actions are in the menu.
        """
        buttons = self._buttons(request, card.group, address)
        if card.run:
            return [], buttons
        if _ready(card.group) == 1:
            return [one for one in buttons if "discard" not in one.address and "hold" not in one.address], []
        return buttons[:1], buttons[1:]

    def _page_buttons(
        self, request: HttpRequest, group: Any, run: RequeueRun | None
    ) -> tuple[list[Button], list[Button]]:
        """Return the actions of the page: those it shows, and in its menu the lesser ones, unless one is alone.

        One that is not allowed is not in the menu, because the page says why it is not. While a run has to send some
        of the messages, the next step is to look at it.
        """
        buttons = self._buttons(request, group, self.address, own_page=True)
        if run:
            calm = [replace(one, kind="") if one.kind == "main" else one for one in buttons]
            buttons = [*self.button_of_run(request, run), *calm]
        # An error that stays until its cause is fixed may be one of the bodies.
        names = LESSER[:2] if is_permanent(group) else LESSER
        pages = tuple(self.address(name) for name in names)
        lesser = [one for one in buttons if not (one.kind or one.why) and one.address.startswith(pages)]
        return ([one for one in buttons if one not in lesser], lesser) if len(lesser) > 1 else (buttons, [])

    def _origin(self, request: HttpRequest, group: ErrorGroup, origin: Origin, count: int) -> dict[str, Any]:
        """Return a queue and handler of the group, with the address of its messages, and of their preview."""
        query = urlencode({"group": group.pk, **origin._asdict()})
        preview = "" if refusal(request, "requeue", count=count) else self.address("requeuerun_preview")
        return {
            **origin._asdict(),
            "count": count,
            "list": f"{self.address('parkedmessage_changelist')}?{query}",
            "preview": preview and f"{preview}?{query}",
        }


def _ready(group: Any) -> int:
    """Return the number of its parked messages that are not on hold."""
    return int(max(group.parked - group.held, 0))


def _chosen(asked: str, show: str) -> QuerySet[Any]:
    # What is on hold waits for nobody now. By their age no card of equally many changes its place as messages come.
    groups = with_held(ErrorGroup.objects.all()).order_by((F("parked") - F("held")).desc(), "-parked", "-pk")
    if show == "parked":
        groups = groups.filter(parked__gt=0, muted=False)
    elif show == "muted":
        groups = groups.filter(muted=True)
    if asked:
        words = Q(title__icontains=asked) | Q(culprit__icontains=asked) | Q(note__icontains=asked)
        groups = groups.filter(words | Q(ticket__icontains=asked))
    return groups


def _with_origin(groups: QuerySet[Any]) -> QuerySet[Any]:
    """Add what is known of the message parked last, and how many were handled already, or may have been."""
    last = last_parked()
    origins = ParkedOrigin.objects.filter(group=OuterRef("pk"), count__gt=0).order_by()
    handled = origins.filter(handled=True).values("group").annotate(n=Sum("count")).values("n")
    found: QuerySet[Any] = with_perhaps_handled(groups).annotate(
        type=Subquery(last.values("type")[:1]),
        said=Subquery(last.values(said=SAID)[:1]),
        last_again=Subquery(last.values(again=ExpressionWrapper(FAILED_AGAIN, models.BooleanField()))[:1]),
        parked_in=Subquery(last.values("parked_in")[:1]),
        handled=Coalesce(Subquery(handled), 0),
    )
    return found


def _with_edits(groups: list[Any]) -> list[Any]:
    """Add the number of parked messages that were edited and not sent since."""
    unsent = edited_unsent() if groups else Counter[int]()
    for group in groups:
        group.edited = unsent[group.pk]
    return groups


def _example(
    request: HttpRequest, seen: Sequence[ParkedMessage], acts: Mapping[int, Sequence[OperatorAction]]
) -> dict[str, Any]:
    """Return the newest message that the user may see, with its body and what happened to it; by two queries.

    One more if it was requeued.
    """
    example = ParkedMessage.objects.filter(pk=seen[0].pk).first() if seen else None
    if example is None:
        return {}
    attempts = list(attempts_of(example).defer("chain", "logs")[:MOST_EVENTS])
    for attempt in attempts:
        # The group has a traceback.
        attempt.chain, attempt.logs = [], ""
    places = RequeueItem.objects.filter(message=example.pk).select_related("run").order_by("-pk")
    items = list(places[:MOST_EVENTS]) if example.requeued_at else []
    whole = not refusal(request, "view_payload", message=example)
    return {
        "example": example,
        "example_name": labels.key(example),
        "example_marks": labels.marks(example),
        "untried": not attempts,
        "body": None if example.erased_at else body_of(contents(example).body, example.content_type, whole=whole),
        "events": [
            one for one in timeline(example, attempts, acts.get(example.pk, ()), items, ()) if one.kind != "waited"
        ][:MOST_EVENTS],
    }


def _with_runs(request: HttpRequest, group: ErrorGroup, numbers: Collection[int]) -> dict[str, Any]:
    """Return the activity: these actions, those on the group, and its runs, each with how many messages it chose here.

    Where these are all that it chose, its count says so already.
    """
    runs = runs_with(group.pk)
    known = activity(request, acts_in(group.pk, runs) | Q(number__in=numbers))
    for act, _why in known["activity"]:
        here = runs.get(act.run) if act.action == Action.REQUEUE else act.groups.get(group.pk)
        act.here = here if here != act.count + act.more_left_out else None
    return known


def _kept_back(request: HttpRequest, attempt: Attempt) -> str:
    """Return the reason that the project's rules withhold a traceback; they are called with the attempt's message."""
    if not operators.has_own_rules(request.user):
        return ""
    message = ParkedMessage.objects.filter(identity=attempt.identity).first()
    return operators.own_rules_refusal() if message is None else refusal(request, "view_traceback", message=message)


def _shares(group: ErrorGroup) -> tuple[list[tuple[str, str]], list[tuple[Origin, int]]]:
    """Return the types and the origins of a group's parked messages, each with how many there are."""
    types, origins = Counter[str](), Counter[Origin]()
    origins_counted = ParkedOrigin.objects.filter(group=group.pk, count__gt=0).order_by("queue", "handler", "type")
    for queue, handler, name, count in origins_counted.values_list("queue", "handler", "type", "count"):
        types[name] += count
        origins[Origin(queue, handler)] += count
    return [(name, str(Count(count))) for name, count in types.most_common(MOST_TYPES)], origins.most_common()
