"""The admin of requeue runs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import floatformat
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy
from django.views.decorators.http import require_POST

from django_rmq_retry import database_clock
from django_rmq_retry.admin import (
    broker_look,
    early_form,
    exports,
    labels,
    places,
    requeue_form,
    run_outcomes,
    steering,
)
from django_rmq_retry.admin.cards import names_of
from django_rmq_retry.admin.labels import column, cut_line, labelled
from django_rmq_retry.admin.pages import Button, Pages, refusal, requires
from django_rmq_retry.admin.run_outcomes import MOST_ITEMS, Failures
from django_rmq_retry.admin.run_state import run_badge, run_outcome, waits_for_broker
from django_rmq_retry.admin.timeline import activity
from django_rmq_retry.health.processes import any_alive
from django_rmq_retry.markup import NOTHING, counted, time_minute, time_span, visible, wrapping
from django_rmq_retry.models import (
    Action,
    EarlyRetry,
    ErrorGroup,
    ItemState,
    OperatorAction,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
)
from django_rmq_retry.models.runs import MIN_OUTCOMES
from django_rmq_retry.parked import approvals
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.elsewhere import Room, places_of
from django_rmq_retry.parked.items import MOST_UNSENT_COUNTED, OUTCOME_LIMIT, unsent_of_stopped
from django_rmq_retry.parked.key_lists import keys_of, unmatched
from django_rmq_retry.parked.lease import DRIVEN
from django_rmq_retry.parked.operators import has_own_rules
from django_rmq_retry.parked.pace import measured_rate, seconds_left
from django_rmq_retry.parked.run_steps import send_run
from django_rmq_retry.parked.selection import EXCEPT
from django_rmq_retry.recurring import thread_name
from django_rmq_retry.wording import number

PAGE_SLICE_SECONDS = 0.5
"""Seconds for which an open page sends in one request; the page then requests the next slice."""
CLICK_SECONDS = 10.0
"""Seconds for which a page without JavaScript sends: there each slice is a click."""
MOST_CAUSES_SHOWN = 5


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
        "of_sent",
        "of_processed",
        "of_failed",
        "of_left",
        "what",
    )
    list_display_links = ("name",)
    list_filter = ("state",)
    ordering = ("-pk",)
    sortable_by = ()
    change_list_template = "admin/rmq_retry/requeuerun/list.html"

    name = admin.display(description=pgettext_lazy("one requeue", "Run"))(lambda _self, run: run.pk)
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
    of_sent = column(RequeueRun, "sent", "total")
    of_processed = admin.display(description=gettext_lazy("processed"))(
        lambda _self, run: labelled(_("Processed"), _processed(run))
    )
    of_failed = column(RequeueRun, "failed")
    of_left = admin.display(description=gettext_lazy("left out"))(
        lambda _self, run: labelled(_("Left out"), number(run.left_out))
    )

    def own_urls(self) -> list[URLPattern]:
        return [
            self.own_url("preview/", "preview", self.roomy(partial(requeue_form.preview, self))),
            self.own_url("waiting/", "waiting", partial(early_form.preview, self)),
            self.own_url("<int:pk>/control/", "control", partial(steering.control, self)),
            self.own_url("<int:pk>/export/", "export", require_POST(partial(exports.run, self))),
            self.own_url("<int:pk>/send/", "send", non_atomic_requests(require_POST(self.send))),
        ]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        shown = super().get_changelist_instance(request)
        shown.result_list = list(shown.result_list)
        causes = causes_of(shown.result_list)
        for run in shown.result_list:
            run.what = _what(run, causes[run.pk])
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
        driven, now = run.state in DRIVEN, database_clock.reckoned(records_alias())
        # Drivers without a connection pass the run round, so that one with a connection can have it.
        passed_round = run.wait == RunWait.BROKER_AWAY
        undriven = driven and (passed_round or run.leased_until is None or run.leased_until < now)
        sees_requests = not refusal(request, "view_request")
        seen, left_out = broker_look.glimpse(), _keys_left_out(request, run)
        failures = run_outcomes.failures(request, run)
        away, unattended = waits_for_broker(run, seen), driven and not any_alive()
        return self.page(
            request,
            "requeuerun/run.html",
            part="parts/run.html",
            title=str(run),
            run=run,
            driven=driven,
            undriven=undriven,
            away=away,
            over=_is_over(run, now),
            sending=driven and not away and run.driver == thread_name("page") and request.method == "POST",
            silent=driven and run.is_silent(now),
            unattended=unattended,
            mine=run.by_user_id == request.user.pk,
            why_not_send=refusal(request, "requeue"),
            why=run.explanation,
            chosen=labels.selection_text(run.selection, "" if run.causes else run.description, causes=not run.causes),
            causes=causes_of([run])[run.pk],
            decided=_decided(run),
            look=seen,
            others_send=bool(seen.unreachable) and not away,
            badge=run_badge(run, unreachable=away),
            state=run_outcome(run, unreachable=away)[1],
            unsent=run.unsent if run.state == RunState.PAUSED else 0,
            first=_first_processed(run),
            pace=measured_rate(run),
            left=None if away or unattended else seconds_left(run),
            guard=_guard(run),
            waiting=run.sent - run.processed - run.failed,
            buttons=self._buttons(request, run, failures),
            took=_took(run),
            asked=approvals.requests().filter(run=run.pk).first() if run.approved_by and sees_requests else None,
            outages=[(begun, ended, (ended - begun).total_seconds()) for begun, ended in run.ended_outages],
            left_out=left_out,
            **_unmatched(request, left_out),
            failures=failures,
            skipped=run_outcomes.left_out(request, run) if run.skipped else (),
            retries=run_outcomes.failed_retries(request, run) if run.failed and run.retries_of else (),
            lists="" if run.retries_of or refusal(request, "view") else self.address("parkedmessage_changelist"),
            **activity(request, run=run.pk),
            unsure=run_outcomes.unsure(request, run) if run.unconfirmed else (),
        )

    def _buttons(self, request: HttpRequest, run: RequeueRun, failures: Failures) -> list[Button]:
        buttons = steering.buttons(self, request, run)
        if failures.parked:
            label = counted(_("Requeue the %(count)d that failed again…"), count=failures.parked)
            again = self._again(request, run, "failed_of_run", label, failures.parked)
            buttons.append(again if run.active else replace(again, kind="main"))
        if unsent := unsent_of_stopped(run):
            label = _("Requeue those that were not sent…")
            if unsent <= MOST_UNSENT_COUNTED:
                label = counted(_("Requeue the %(count)d that were not sent…"), count=unsent)
            buttons.append(self._again(request, run, "unsent_of_run", label, unsent))
        export = self.address("requeuerun_export", run.pk)
        return [*buttons, Button(label=_("Export CSV"), address=export, why=refusal(request, "export"), post=True)]

    def _again(self, request: HttpRequest, run: RequeueRun, word: str, label: str, count: int) -> Button:
        address = f"{self.address('requeuerun_preview')}?{word}={run.pk}"
        return Button(label=label, address=address, why=refusal(request, "requeue", count=count))


def _is_over(run: RequeueRun, now: datetime) -> bool:
    """True if nothing on its page changes any more: a stopped run still receives the outcomes of what it sent."""
    if run.active:
        return False
    # Only a driver finds the outcomes of retries.
    comes = run.state == RunState.STOPPED and not run.retries_of and run.sent > run.processed + run.failed
    return not comes or (run.finished_at is not None and run.finished_at < now - OUTCOME_LIMIT)


def badge_of(run: RequeueRun, seen: broker_look.Look | None = None) -> SafeString:
    """Return the badge of a run, with what this process knows of the broker."""
    return run_badge(run, unreachable=waits_for_broker(run, seen or broker_look.glimpse()))


def _first_processed(run: RequeueRun) -> RequeueItem | EarlyRetry | None:
    """Return the message for whose outcome the rest has waited; None if it still waits, or never had to.

    The first to be sent has the first place, but an earlier one may have failed or waited for its business key.
    """
    if not run.canary or run.awaits_canary:
        return None
    place = "pk" if run.retries_of else "place"
    done = run.parts.filter(state=ItemState.PROCESSED, ended_at__isnull=False).order_by(place)[:MIN_OUTCOMES]
    return min(done, key=lambda one: one.ended_at, default=None)


def _keys_left_out(request: HttpRequest, run: RequeueRun) -> list[str]:
    """Return the keys whose messages the operator has left out; none for a user who may not see messages."""
    listed = run.selection.get("filter", {}).get(EXCEPT)
    return [] if listed is None or refusal(request, "view") else keys_of(listed["list"])


def _unmatched(request: HttpRequest, left_out: Sequence[str]) -> dict[str, Any]:
    """Return the first of the keys that match no parked message, and where those wait that a blocked key holds back.

    None for a user for whom each message has to be checked.
    """
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
        return run.retries_of
    named = [f"{number(count)} {name}" for _group, name, count in causes[:2]]
    more = "…" if len(causes) > len(named) else ""
    return " · ".join(named) + more or labels.selection_text(run.selection, run.description) or NOTHING


def _took(run: RequeueRun) -> float | None:
    return (run.finished_at - run.started_at).total_seconds() if run.started_at and run.finished_at else None


def _state(run: RequeueRun) -> SafeString:
    """Return the badge of a run, and why it stands: the reason of its start does not tell that."""
    if run.state not in (RunState.PAUSED, RunState.STOPPED) or not run.explanation:
        return badge_of(run)
    return format_html('{} <span class="rmq-quiet rmq-stood">{}</span>', badge_of(run), cut_line(run.explanation))


def _ended(run: RequeueRun) -> SafeString | str:
    """Return when it ended, and how long it took."""
    at, took = time_minute(run.finished_at), _took(run)
    return at if took is None else format_html('{} <span class="rmq-took">· {}</span>', at, time_span(took))


def _processed(run: RequeueRun) -> SafeString | str:
    """Return how many were processed, and how many of them twice: a run that did harm looks like no other."""
    count = number(run.processed)
    if not run.handled_twice:
        return count
    text = ngettext("at least %(count)d twice", "at least %(count)d twice", run.handled_twice)
    twice = counted(text, count=run.handled_twice)
    return format_html('{} <span class="rmq-is-unconfirmed rmq-whole">· {}</span>', count, twice)


def _guard(run: RequeueRun) -> str:
    """Return a sentence with the guard's limit and its present count."""
    if run.stop_at is None:
        return _("guard off: the requeue run continues however many messages fail again")
    most = {"most": floatformat(run.stop_at), "least": MIN_OUTCOMES}
    ended, failed = run.guarded_outcomes
    text = _("guard: pauses when more than %(most)s %% of at least %(least)d fail again") % most
    if failed and failed * 100 < ended:
        text = _("less than 1 %% failed again (guard: pauses above %(most)s %%, from %(least)d outcomes on)") % most
    elif ended:
        share = {"share": round(100 * failed / ended)}
        text = _("%(share)d %% failed again (guard: pauses above %(most)s %%, from %(least)d outcomes on)") % {
            **share,
            **most,
        }
    since = _("counted since it was resumed")
    return f"{text} · {since}" if run.spared_failed else text
