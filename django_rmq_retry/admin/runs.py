"""The admin of requeue runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Max
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import floatformat
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext, pgettext_lazy
from django.views.decorators.http import require_POST

from django_rmq_retry import database_clock
from django_rmq_retry.admin import (
    broker_look,
    early_form,
    exports,
    labels,
    places,
    requeue_form,
    run_lists,
    run_outcomes,
    run_retries,
    steering,
)
from django_rmq_retry.admin.cards import names_of
from django_rmq_retry.admin.labels import cut_line, labelled
from django_rmq_retry.admin.pages import Button, Pages, refusal, requires
from django_rmq_retry.admin.queues import StoppedBadge, StoppedQueues
from django_rmq_retry.admin.run_outcomes import MOST_ITEMS, Since
from django_rmq_retry.admin.run_state import parts, run_outcome, sum_of, waits_for_broker
from django_rmq_retry.admin.timeline import CHANGED, activity
from django_rmq_retry.breakers import table
from django_rmq_retry.breakers.queue_state import QueueState
from django_rmq_retry.health.begun_in_runs import begun_among
from django_rmq_retry.health.doubts import checks_of_runs
from django_rmq_retry.health.facts import killers_lately
from django_rmq_retry.health.handled_again import TWICE_REPORTED_FOR
from django_rmq_retry.health.held import awaits_end_of_doubts, leave_out_unfounded, lost_a_consumer
from django_rmq_retry.health.problems import in_processes
from django_rmq_retry.health.processes import any_alive, read_if_open
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.markup import NOTHING, badge, time_minute, time_span, visible, wrapping
from django_rmq_retry.models import (
    Action,
    ConsumerProcess,
    EarlyRetry,
    ErrorGroup,
    ItemReason,
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.models.runs import MIN_OUTCOMES
from django_rmq_retry.parked import approvals
from django_rmq_retry.parked.checked import checked, mark_of_run
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.elsewhere import places_of
from django_rmq_retry.parked.found import Room
from django_rmq_retry.parked.held_up import held_up, in_few_words, stands, waiting_in
from django_rmq_retry.parked.items import MOST_UNSENT_COUNTED, unsent_of_stopped, unsent_when_stopped
from django_rmq_retry.parked.key_lists import keys_of, unmatched
from django_rmq_retry.parked.lease import DRIVEN
from django_rmq_retry.parked.operators import has_own_rules
from django_rmq_retry.parked.overdue import OUTCOME_LIMIT
from django_rmq_retry.parked.pace import measured_rate, seconds_left
from django_rmq_retry.parked.run_steps import send_run
from django_rmq_retry.parked.selection import EXCEPT
from django_rmq_retry.recurring import thread_name
from django_rmq_retry.topology.declarations import work_queue
from django_rmq_retry.wording import counted, decimal, listed, number

PAGE_SLICE_SECONDS = 0.5
"""Seconds for which an open page sends in one request; the page then requests the next slice."""
CLICK_SECONDS = 10.0
"""Seconds for which a page without JavaScript sends: there each slice is a click."""
MOST_CAUSES_SHOWN = 5
MOST_PROCESSES = 200
"""The most consumers that are looked at, those that were heard of last."""
LOOPS = (Code.CRASH_LOOP, Code.CRASH_LOOP_OVER)
TWICE = ("handled_twice", "perhaps_twice")
"""The numbers of a run that count harm done, or perhaps done."""


@admin.register(RequeueRun)
class RequeueRunAdmin(Pages):
    sees = "view_run"
    list_display = (
        "name",
        "status",
        "started",
        "ended",
        "operator",
        "why",
        "outcomes",
        "what",
    )
    list_display_links = ("name",)
    list_filter = ("state",)
    ordering = ("-pk",)
    sortable_by = ()
    change_list_template = "admin/rmq_retry/requeuerun/list.html"
    live_list = "parts/runs.html"

    name = admin.display(description=pgettext_lazy("one requeue", "Run"))(
        lambda _self, run: labelled(pgettext("one requeue", "Run"), run.pk)
    )
    status = admin.display(description=gettext_lazy("State"))(lambda _self, run: _state(run))
    what = admin.display(description=gettext_lazy("Messages"))(
        lambda _self, run: labelled(_("Messages"), wrapping(run.what))
    )
    why = admin.display(description=gettext_lazy("Reason"))(
        lambda _self, run: labelled(_("Reason"), cut_line(run.reason) if run.reason else NOTHING)
    )
    started = admin.display(description=gettext_lazy("Started"))(
        lambda _self, run: labelled(_("Started"), time_minute(run.started_at))
    )
    ended = admin.display(description=gettext_lazy("Ended"))(lambda _self, run: labelled(_("Ended"), _ended(run)))
    operator = admin.display(description=gettext_lazy("by"))(
        lambda _self, run: labelled(capfirst(_("by")), visible(run.by))
    )
    outcomes = admin.display(description=gettext_lazy("Outcomes"))(
        lambda _self, run: labelled(_("Outcomes"), _outcomes(run))
    )

    def own_urls(self) -> list[URLPattern]:
        return [
            self.own_url("preview/", "preview", self.roomy(partial(requeue_form.preview, self))),
            self.own_url("waiting/", "waiting", partial(early_form.preview, self)),
            self.own_url("<int:pk>/control/", "control", partial(steering.control, self)),
            self.own_url("<int:pk>/export/", "export", require_POST(partial(exports.run, self))),
            self.own_url("<int:pk>/outcomes/", "outcomes", partial(run_lists.outcomes, self)),
            self.own_url("<int:pk>/send/", "send", non_atomic_requests(require_POST(self.send))),
        ]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        shown = super().get_changelist_instance(request)
        shown.result_list = list(shown.result_list)
        leave_out_unfounded(shown.result_list)
        causes, not_sent = causes_of(shown.result_list), unsent_when_stopped(shown.result_list)
        checks = checks_of_runs(shown.result_list)
        held, resolved = held_up(filter(stands, shown.result_list)), run_outcomes.resolved(shown.result_list)
        for run in shown.result_list:
            run.what, run.not_sent = _what(run, causes[run.pk]), not_sent.get(run.pk, 0)
            run.check, run.held = checks.get(run.pk), in_few_words(held.get(run.pk, ()))
            run.resolved = run.pk in resolved
        return shown

    def row_page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._shown(request, steering.run_of(object_id))

    @requires("requeue")
    def send(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Send a slice of the requeue run: short ones for the script, longer ones for a user without it."""
        scripted = bool(request.GET.get("fragment"))
        why = refusal(request, self.sees) if scripted else ""
        if why:
            return self.refused(request, why)
        steering.run_of(str(pk))
        # A click waits until the slice is sent; the page shows the outcomes at the next request.
        seconds = PAGE_SLICE_SECONDS if scripted else CLICK_SECONDS
        run = send_run(pk, thread_name("page"), for_seconds=seconds, outcomes=scripted)
        return self._shown(request, run) if scripted else HttpResponseRedirect(self.address("requeuerun_change", pk))

    def _shown(self, request: HttpRequest, run: RequeueRun) -> HttpResponse:
        driven, now, pace = run.state in DRIVEN, database_clock.reckoned(records_alias()), measured_rate(run)
        awaits_end = awaits_end_of_doubts(run, now)
        leave_out_unfounded([run])
        # Drivers without a connection pass the run round, so that one with a connection can have it.
        passed_round = run.wait == RunWait.BROKER_AWAY
        undriven = driven and (passed_round or run.leased_until is None or run.leased_until < now)
        sees_requests = not refusal(request, "view_request")
        seen, left_out = broker_look.glimpse(), _keys_left_out(request, run)
        failures = run_outcomes.failures(request, run)
        # A run that sends nothing waits for no broker, whatever this process knows of it.
        away, unattended = run.active and waits_for_broker(run, seen), driven and not any_alive()
        over, silent = _is_over(run, now), driven and run.is_silent(now)
        lists = "" if run.retries_of or refusal(request, "view") else self.address("parkedmessage_changelist")
        unsure = run_outcomes.unsure(request, run, ItemState.UNCONFIRMED)
        lost = run_outcomes.unsure(request, run, ItemState.SENT) if over else run_outcomes.NONE_UNSURE
        skipped = run_outcomes.left_out(request, run) if run.skipped else []
        not_sent = sum(one.number for one in skipped if one.code == ItemReason.STOPPED)
        early, check = run_retries.failed(request, run), _check(run)
        if run.retries_of and run.state == RunState.STOPPED:
            not_sent = run.skipped
        shown_at = _where_shown(run, lists, unsure=bool(unsure.items), lost=bool(lost.items))
        listed = {kind: f"{self.address('requeuerun_outcomes', run.pk)}?of={kind}" for kind in run_lists.KINDS}
        sees = not (run_lists.why_hidden(request) if run.retries_of else refusal(request, "view"))
        if run.retries_of and sees:
            shown_at |= {ItemState(kind): address for kind, address in listed.items() if kind not in TWICE}
        parked_again, doubtful = failures.parked + early.parked, failures.doubtful + early.doubtful
        if not_sent:
            shown_at[ItemState.PENDING] = shown_at[ItemState.SKIPPED]
        stopped = [] if over else held_up([run]).get(run.pk, [])
        held, resolved = in_few_words(stopped) if stands(run) else "", bool(run_outcomes.resolved([run]))
        kind, state = run_outcome(run, unreachable=away, held=held, checked=_is_checked(check), resolved=resolved)
        return self.page(
            request,
            "requeuerun/run.html",
            part="parts/run.html",
            title=_title(run),
            run=run,
            driven=driven,
            undriven=undriven,
            away=away,
            over=over and not awaits_end,
            sending=driven and not away and run.driver == thread_name("page") and request.method == "POST",
            silent=silent,
            unattended=unattended,
            mine=run.by_user_id == request.user.pk,
            why_not_send=refusal(request, "requeue"),
            why=_deep_queues(run, seen) or run.explanation,
            deep=_waits_for_queue(run),
            chosen=_chosen(run, told={EXCEPT} if left_out else ()),
            causes=causes_of([run])[run.pk],
            decided=_decided(run),
            look=seen,
            others_send=run.active and bool(seen.unreachable) and not away,
            badge=badge(kind, state),
            state=state,
            first=_first_processed(run),
            follow=driven and not silent and run.unsent > 0,
            stopped=_badges(stopped),
            trouble=_trouble(run, now, {one.queue for one in stopped}),
            too_late=_too_late(run, stopped),
            guard_pauses=[_guard_pause(one) for one in run.guard_pauses or []],
            pace=None if pace is None else decimal(round(pace, 2), 2 if pace < 1 else 1),
            left=None if away or unattended or run.awaits_canary or stopped else seconds_left(run),
            guard=_guard(run),
            sends=driven and run.unsent > 0 and not (silent or away or run.wait),
            not_sent=not_sent,
            last_sent=(last_sent := _last_sent(run)),
            later=_hour_began_later(run, last_sent),
            parts=parts(run, over=over, not_sent=not_sent, shown_at=shown_at),
            buttons=self._buttons(
                request,
                run,
                unsure.since,
                lost.since,
                failed=parked_again,
                doubtful=doubtful,
                silent=silent,
                unchecked=_unchecked(run, now, check),
            ),
            took=_took(run),
            asked=approvals.requests().filter(run=run.pk).first() if run.approved_by and sees_requests else None,
            outages=_with_spans(run.ended_outages),
            silences=_with_spans(run.ended_silences),
            left_out=left_out,
            **_unmatched(request, run, left_out),
            failures=failures,
            skipped=skipped,
            early=early,
            twice_at={word: listed[word] for word in TWICE} if sees else {},
            doubtful=doubtful,
            begun=len(begun_among(run)) if run.perhaps_twice else 0,
            **check,
            lists=lists,
            **activity(request, run=run.pk),
            unsure=unsure,
            lost=lost,
        )

    def _buttons(
        self,
        request: HttpRequest,
        run: RequeueRun,
        unsure: Since,
        lost: Since,
        *,
        failed: int,
        doubtful: int,
        silent: bool,
        unchecked: Code | None,
    ) -> list[Button]:
        buttons = steering.buttons(self, request, run, silent=silent)
        if doubtful:
            label = counted(_("Look at the %(count)d that may have been handled…"), count=doubtful)
            address = f"{self.address('parkedmessage_changelist')}?state=parked&perhaps_twice_of_run={run.pk}"
            kind = "" if run.active else "main"
            buttons.append(Button(label=label, address=address, why=refusal(request, "view"), kind=kind))
        if failed:
            label = counted(_("Requeue the %(count)d that failed again…"), count=failed)
            again = self._again(request, run, "failed_of_run", label, failed)
            buttons.append(again if run.active or doubtful else replace(again, kind="main"))
        if unsure.parked:
            label = counted(_("Check the %(count)d that were not confirmed…"), count=unsure.parked)
            address = f"{self.address('parkedmessage_changelist')}?state=parked&{unsure.chosen}"
            kind = "" if run.active or failed else "main"
            buttons.append(Button(label=label, address=address, why=refusal(request, "view"), kind=kind))
        if requeued := lost.now.get(State.REQUEUED, 0):
            label = counted(_("Check the %(count)d without an outcome…"), count=requeued)
            address = f"{self.address('parkedmessage_changelist')}?state=requeued&{lost.chosen}"
            kind = "" if failed or unsure.parked else "main"
            buttons.append(Button(label=label, address=address, why=refusal(request, "view"), kind=kind))
        if unsent := unsent_of_stopped(run):
            label = _("Requeue those that were not sent…")
            if unsent <= MOST_UNSENT_COUNTED:
                label = counted(_("Requeue the %(count)d that were not sent…"), count=unsent)
            buttons.append(self._again(request, run, "unsent_of_run", label, unsent))
        if unchecked is not None:
            address = f"{self.address('livestatus_checked')}?{urlencode({'code': unchecked.name, 'run': run.pk})}"
            buttons.append(Button(label=_("Checked…"), address=address, why=refusal(request, "view_status", "discard")))
        export = self.address("requeuerun_export", run.pk)
        buttons.append(Button(label=_("Export CSV"), address=export, why=refusal(request, "export"), post=True))
        return sorted(buttons, key=lambda one: one.kind == "danger")

    def _again(self, request: HttpRequest, run: RequeueRun, word: str, label: str, count: int) -> Button:
        address = f"{self.address('requeuerun_preview')}?{word}={run.pk}"
        return Button(label=label, address=address, why=refusal(request, "requeue", count=count))


def _check(run: RequeueRun) -> dict[str, Any]:
    """Return the last action that says that its doubts were checked, and whether some came since."""
    if not (run.handled_twice or run.perhaps_twice):
        return {}
    act = OperatorAction.objects.filter(run=run.pk, action=Action.CHECK).order_by("-number").first()
    return {"check": act, "unchecked": act is not None and mark_of_run(run) not in checked()}


def _is_checked(check: Mapping[str, Any]) -> bool:
    return bool(check.get("check")) and not check["unchecked"]


def _unchecked(run: RequeueRun, now: datetime, check: Mapping[str, Any]) -> Code | None:
    """Return the finding on the run that an operator can still end by saying that all of it was checked."""
    reported = run.active or (run.finished_at is not None and run.finished_at > now - TWICE_REPORTED_FOR)
    if not reported or _is_checked(check):
        return None
    if run.handled_twice:
        return Code.HANDLED_TWICE
    rows = ConsumerProcess.objects.defer("in_flight").order_by("-beat_at")[:MOST_PROCESSES]
    return Code.RUN_PERHAPS_TWICE if lost_a_consumer(run, rows, now) else None


def _is_over(run: RequeueRun, now: datetime) -> bool:
    """True if nothing on its page changes any more: a stopped run still receives the outcomes of what it sent."""
    if run.active:
        return False
    comes = run.state == RunState.STOPPED and run.sent > run.processed + run.failed
    return not comes or (run.finished_at is not None and run.finished_at < now - OUTCOME_LIMIT)


def _where_shown(run: RequeueRun, lists: str, *, unsure: bool, lost: bool) -> dict[ItemState, str]:
    """Return where the page or the list of messages shows the messages of each state, if it does."""
    here = {ItemState.SKIPPED: "#rmq-skipped", **({ItemState.UNCONFIRMED: "#rmq-unsure"} if unsure else {})}
    words = {ItemState.PROCESSED: "processed", ItemState.FAILED: "failed", ItemState.SENT: "waiting"}
    listed = {state: f"{lists}?state=all&{word}_of_run={run.pk}" for state, word in words.items()}
    return here | (listed if lists else {}) | ({ItemState.SENT: "#rmq-lost"} if lost else {})


def _chosen(run: RequeueRun, *, told: Collection[str]) -> str:
    """Return how its messages were chosen, without what the page says apart: their causes, and the filters ``told``."""
    # The title of a run of waiting retries names their queue.
    told = {*told, "queue"} if run.retries_of else told
    words = {name: value for name, value in run.selection.get("filter", {}).items() if name not in told}
    if run.retries_of and not words:
        return ""
    selection = {**run.selection, **({"filter": words} if words else {})}
    return labels.selection_text(selection, "" if run.causes else run.description, causes=not run.causes)


def badge_of(
    run: RequeueRun,
    seen: broker_look.Look | None = None,
    *,
    held: str = "",
    checked: bool = False,
    resolved: bool = False,
) -> SafeString:
    """Return the badge of a run, with what this process knows of the broker."""
    away = waits_for_broker(run, seen or broker_look.glimpse())
    return badge(*run_outcome(run, unreachable=away, held=held, checked=checked, resolved=resolved))


def _first_processed(run: RequeueRun) -> RequeueItem | EarlyRetry | None:
    """Return the message for whose outcome all others have waited; None if it still waits, or never had to.

    The first to be sent has the first place, but an earlier one may have failed or waited for its business key.
    """
    if not run.canary or run.awaits_canary:
        return None
    place = "pk" if run.retries_of else "place"
    sent = list(run.parts.filter(sent_at__isnull=False).order_by(place)[: MIN_OUTCOMES + 1])
    if len(sent) == 1 and run.state not in DRIVEN:
        # It paused or ended before it sent another one.
        return None
    ended = [one for one in sent if one.state == ItemState.PROCESSED and one.ended_at]
    return min(ended, key=lambda one: one.ended_at, default=None)


def _badges(stopped: Sequence[QueueState]) -> list[tuple[str, StoppedBadge]]:
    """Return the stopped queues for which a run waits, each with its badge."""
    return sorted(StoppedQueues.of_states(stopped, table.now(), read_if_open(stopped)).badges.items())


def _waits_for_queue(run: RequeueRun) -> bool:
    return run.state == RunState.RUNNING and run.wait == RunWait.QUEUE_DEEP


def _deep_queues(run: RequeueRun, seen: broker_look.Look) -> str:
    """Return how many messages the queues hold that set the pace of a run; empty if none does, or is known."""
    if not _waits_for_queue(run):
        return ""
    queues, most = waiting_in(run, ItemState.PENDING), run.max_depth or 0
    known = [(one.queue, one.ready) for one in map(seen.level, queues) if one and one.ready is not None]
    # Of several queues, one that is below the limit holds nothing back.
    told = known if len(queues) == 1 else [(queue, ready) for queue, ready in known if ready > most]
    text = _("It sends whenever %(queue)s has at most %(most)s ready: now %(ready)s.")
    texts = [text % {"queue": queue, "most": number(most), "ready": number(ready)} for queue, ready in told]
    return " ".join(filter(None, (run.idle_text, *texts))) if texts else ""


def _too_late(run: RequeueRun, stopped: Sequence[QueueState]) -> list[str]:
    """Return the queues in which messages wait that the guard would not have sent: it counts outcomes, which come late.

    Only a pause of the queue keeps them from being tried.
    """
    late = run.state == RunState.WAITING and run.guard_exceeded and run.tally[ItemState.SENT]
    at = table.now() if stopped else 0
    paused = {one.queue for one in stopped if one.is_paused(at)}
    return [queue for queue in waiting_in(run) if queue not in paused] if late else []


def _trouble(run: RequeueRun, now: datetime, stopped: Collection[str]) -> list[Problem]:
    """Return what is wrong with the consumers of the queues in which messages of an active run wait for an outcome."""
    if run.state not in DRIVEN or not run.tally[ItemState.SENT]:
        return []
    rows = list(ConsumerProcess.objects.order_by("-beat_at")[:MOST_PROCESSES])
    if not _troubles(rows, now):
        return []
    queues = set(waiting_in(run))
    # A message of another queue may kill the consumers of this one, so a crash loop is told whole.
    whole = [one for one in _troubles(rows, now, killers_lately(now)) if one.code in LOOPS]
    signed = checked() if whole else {}
    whole = [one for one in whole if not one.doubts.keys() <= signed.keys()]
    loops = [_loop_for(queues, one, stopped) for one in whole if queues & _named(one, "read")]
    mine = [_narrowed(row, queues) for row in rows if not queues.isdisjoint(map(work_queue, row.queues))]
    return [*filter(None, loops), *(one for one in _troubles(mine, now) if one.code not in LOOPS)]


def _loop_for(queues: set[str], loop: Problem, stopped: Collection[str]) -> Problem | None:
    """Return a crash loop as it concerns these queues; None if messages of others caused it, and nothing waits for it.

    It is over, or these queues are stopped.
    """
    source = _named(loop, "source")
    if not source or queues & source:
        return loop
    held = queues.intersection(_named(loop, "read")).difference(stopped)
    if loop.code is Code.CRASH_LOOP_OVER or not held:
        return None
    text = _("They also read %(queues)s.") % {"queues": listed(sorted(held))}
    return replace(loop, values={**loop.values, "details": f"{text} {loop.values['details']}"})


def _named(loop: Problem, name: str) -> set[str]:
    queues: Any = loop.values[name]
    return set(queues)


def _narrowed(row: ConsumerProcess, queues: Collection[str]) -> ConsumerProcess:
    """Leave out what a process has of other queues: it is no trouble of the run."""
    row.queues = [name for name in row.queues if work_queue(name) in queues]
    row.in_flight = [one for one in row.in_flight if work_queue(str(one.get("queue"))) in queues]
    row.late = [one for one in row.late if work_queue(str(one.get("queue"))) in queues]
    return row


def _troubles(rows: Sequence[ConsumerProcess], now: datetime, suspects: Sequence[ParkedMessage] = ()) -> list[Problem]:
    return [one for one in in_processes(rows, now, suspects=suspects) if one.code is not Code.VERSIONS]


def _guard_pause(pause: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromisoformat(pause[name]) for name in ("at", "tested") if name in pause}
    return {**pause, **times}


def _keys_left_out(request: HttpRequest, run: RequeueRun) -> list[str]:
    """Return the keys whose messages the operator has left out; none for a user who may not see messages."""
    listed = run.selection.get("filter", {}).get(EXCEPT)
    return [] if listed is None or refusal(request, "view") else keys_of(listed["list"])


def _unmatched(request: HttpRequest, run: RequeueRun, left_out: Sequence[str]) -> dict[str, Any]:
    """Return the first of the keys that match no parked message, and where those wait that a blocked key holds back.

    Of a run of retries those that no waiting retry had.

    None for a user for whom each message has to be checked.
    """
    if run.retries_of:
        return {"unmatched": run.selection.get("missing", []) if left_out else [], "waiting_keys": ()}
    missing = [] if has_own_rules(request.user) else unmatched(left_out)[:MOST_ITEMS]
    waiting = places_of(missing, [] if refusal(request, "view_key") else [Room.KEYS]).found
    return {"unmatched": [key for key in missing if key not in waiting], "waiting_keys": places.lines(waiting)}


def _decided(run: RequeueRun) -> OperatorAction | None:
    """Return the action by which an operator paused or stopped the run."""
    action = {RunState.STOPPED: Action.STOP, RunState.PAUSED: Action.PAUSE}.get(RunState(run.state))
    if action is None or run.wait:
        return None
    return OperatorAction.objects.filter(run=run.pk, action=action).order_by("-number").first()


def causes_of(runs: Sequence[RequeueRun]) -> dict[int, list[tuple[int, str, int]]]:
    """Return the largest error groups of the messages of each run, with their names and numbers."""
    shown = {run.pk: run.causes[:MOST_CAUSES_SHOWN] for run in runs}
    numbers = {group for causes in shown.values() for group, _count in causes}
    names = names_of(ErrorGroup.objects.filter(pk__in=numbers))
    return {
        pk: [(group, names[group], count) for group, count in causes if group in names] for pk, causes in shown.items()
    }


def _what(run: RequeueRun, causes: Sequence[tuple[int, str, int]]) -> str:
    """Return the causes of the messages of a run, or how they were chosen, in a short line."""
    if run.retries_of:
        return _retries_of(run)
    named = [f"{number(count)} {name}" for _group, name, count in causes[:2]]
    more = "…" if len(causes) > len(named) else ""
    return " · ".join(named) + more or labels.selection_text(run.selection, run.description) or NOTHING


def _retries_of(run: RequeueRun) -> str:
    text = ngettext("%(count)s waiting retry of %(queue)s", "%(count)s waiting retries of %(queue)s", run.total)
    return text % {"count": number(run.total), "queue": run.retries_of}


def _title(run: RequeueRun) -> str:
    return f"{run}: {_retries_of(run)}" if run.retries_of else str(run)


def _last_sent(run: RequeueRun) -> datetime | None:
    """Return when the last of the messages was sent for whose outcomes it waits; None if it does not."""
    if run.state != RunState.WAITING:
        return None
    found: datetime | None = run.parts.filter(state=ItemState.SENT).aggregate(last=Max("sent_at"))["last"]
    return found


def _hour_began_later(run: RequeueRun, last_sent: datetime | None) -> bool:
    """Return True if a queue was stopped after that: the hour for the outcomes began anew with its resume."""
    return bool(last_sent and run.held_at and run.held_at > last_sent)


def _took(run: RequeueRun) -> float | None:
    return (run.finished_at - run.started_at).total_seconds() if run.started_at and run.finished_at else None


def _with_spans(times: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime, float]]:
    return [(begun, ended, (ended - begun).total_seconds()) for begun, ended in times]


def _state(run: Any) -> SafeString:
    """Return the badge of a run, and why it stands: the reason of its start does not tell that."""
    shown = badge_of(run, held=run.held, checked=run.check is not None, resolved=run.resolved)
    if run.state not in (RunState.RUNNING, RunState.PAUSED, RunState.STOPPED) or not run.explanation:
        return shown
    return format_html('{} <span class="rmq-quiet rmq-stood">{}</span>', shown, cut_line(run.explanation))


def _ended(run: RequeueRun) -> SafeString | str:
    """Return when it ended, and how long it took."""
    at, took = time_minute(run.finished_at), _took(run)
    return at if took is None else format_html('{} <span class="rmq-took">({})</span>', at, time_span(took))


def _outcomes(run: Any) -> SafeString:
    """Return the sum of a run, and what is beside it: a run that did harm looks like no other."""
    twice = ngettext("at least %(count)d twice", "at least %(count)d twice", run.handled_twice)
    perhaps = ngettext("%(count)d perhaps twice", "%(count)d perhaps twice", run.perhaps_twice)
    keys = ngettext("%(count)d more left out by its key", "%(count)d more left out by their keys", run.excluded)
    harm, doubt = ("quiet", "quiet") if run.check else ("is-failed", "is-unconfirmed")
    beside = [
        (kind, counted(text, count=count))
        for kind, text, count in (
            (harm, twice, run.handled_twice),
            (doubt, perhaps, run.perhaps_twice),
            ("quiet", keys, run.excluded),
        )
        if count
    ]
    told = sum_of(run, run.not_sent) + format_html_join("", ' <span class="rmq-{} rmq-whole">· {}</span>', beside)
    if run.check:
        # A name may be as long as an address: it wraps.
        checked = CHANGED[Action.CHECK] % {"name": run.check.who}
        told += format_html(' <span class="rmq-quiet">· ✓ {}</span>', wrapping(checked))
    return told


def _guard(run: RequeueRun) -> str:
    """Return a sentence with the guard's limit and its present count."""
    if run.stop_at is None:
        return _("guard off: the requeue run continues however many messages fail again")
    most = {"most": floatformat(run.stop_at), "least": MIN_OUTCOMES}
    ended, failed = run.guarded_outcomes
    text = _("guard: pauses when more than %(most)s %% of at least %(least)d fail again") % most
    if 0 < ended < MIN_OUTCOMES:
        few = _("%(failed)s of %(ended)s failed again")
        text = f"{text} · {few % {'failed': number(failed), 'ended': number(ended)}}"
    elif failed and failed * 100 < ended:
        text = _("less than 1 %% failed again (guard: pauses above %(most)s %%, from %(least)d outcomes on)") % most
    elif ended:
        share = {"share": round(100 * failed / ended)}
        text = _("%(share)d %% failed again (guard: pauses above %(most)s %%, from %(least)d outcomes on)") % {
            **share,
            **most,
        }
    since = _("counted since it was resumed")
    return f"{text} · {since}" if run.spared_failed else text
