"""Steers a requeue run: a pause or another rate acts at once, and a page asks before it is resumed or stopped."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import floatformat
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin.pages import Button, Pages, migrated, refusal, requires
from django_rmq_retry.admin.requeue_form import typed_number
from django_rmq_retry.models import ParkedMessage, RequeueRun, RunState
from django_rmq_retry.models.runs import HELD, STOOD_STILL
from django_rmq_retry.parked import requeue_options, run_steering
from django_rmq_retry.parked.items import changed_in, pending
from django_rmq_retry.parked.next_items import queue_of_test
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.under_way import under_way
from django_rmq_retry.parked.unsent_edits import edited_in
from django_rmq_retry.wording import counted

PAUSE, CHANGE_RATE = "pause", "change_rate"
RESUME, TEST, STOP = "resume", "test", "stop"
"""The actions about which a page asks: ``TEST`` sends one more message before the rest."""


@migrated
@requires("view_run", "control")
def control(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """Ask before the run is resumed or stopped, and do what was pressed."""
    run = run_of(str(pk))
    action, wrong = (request.POST or request.GET).get("action", ""), ""
    if request.method == "POST":
        wrong = _lacks_reason(run, action, request.POST.get("reason", ""))
        if not wrong:
            try:
                _steer(run.pk, Actor.of_request(request), action, request)
            except Refused as refused:
                messages.warning(request, str(refused))
    if wrong or (request.method == "GET" and _fits(run, action)):
        return _ask(pages, request, run, action, wrong)
    return HttpResponseRedirect(pages.address("requeuerun_change", run.pk))


def buttons(pages: Pages, request: HttpRequest, run: RequeueRun, *, silent: bool) -> list[Button]:
    """Return the buttons that steer the run, the one that an operator most likely wants first.

    A ``silent`` one, which nobody sends, has no speed to change.
    """
    address, why = pages.address("requeuerun_control", run.pk), refusal(request, "control")
    shown: list[Button] = []

    def ask(label: str, action: str, kind: str = "") -> None:
        shown.append(Button(label=f"{label}…", address=f"{address}?action={action}", why=why, kind=kind))

    def act(label: str, action: str, *values: tuple[str, str]) -> None:
        shown.append(Button(label=label, address=address, why=why, post=True, values=(("action", action), *values)))

    for label, action, kind in _ways_on(run):
        ask(label, action, kind)
    if run.state in (RunState.RUNNING, RunState.PLANNED):
        act(_("Pause"), PAUSE)
    if run.active and run.state != RunState.WAITING and not silent:
        slower = max(round(run.rate / 4), 1)
        if slower < run.rate:
            act(_("Slow to %(rate)d per second") % {"rate": slower}, CHANGE_RATE, ("rate", str(slower)))
        faster = min(round(run.rate * 2), int(requeue_options.FASTEST_RUN_RATE))
        if faster > run.rate and not run.wait:
            act(_("Speed up to %(rate)d per second") % {"rate": faster}, CHANGE_RATE, ("rate", str(faster)))
    if run.active and run.state != RunState.WAITING:
        ask(_("Stop"), STOP, "danger")
    return shown


def _ways_on(run: RequeueRun) -> list[tuple[str, str, str]]:
    """Return how a run that stands can go on: labels, actions and kinds of buttons."""
    if run_steering.retestable(run):
        return [(_test_label(run), TEST, "main"), (_("Resume without a test"), RESUME, "")]
    if run.state == RunState.PAUSED:
        return [(_("Resume"), RESUME, "" if _unproven(run) else "main")]
    return [(_("Send the rest without waiting"), RESUME, "")] if _fits(run, RESUME) else []


def run_of(number: str) -> RequeueRun:
    run = RequeueRun.objects.filter(pk=number).first() if number.isdecimal() else None
    if run is None:
        raise Http404(_("There is no such requeue run."))
    return run


def _steer(run_id: int, actor: Actor, action: str, request: HttpRequest) -> None:
    reason = request.POST.get("reason", "")
    if action == CHANGE_RATE:
        run_steering.change_rate(run_id, actor, rate=typed_number(request.POST.get("rate"), 1.0), reason=reason)
    elif action == PAUSE:
        run_steering.pause_run(run_id, actor, reason=reason)
    elif action in (RESUME, TEST):
        run_steering.resume_run(run_id, actor, canary=action == TEST, reason=reason)
    elif action == STOP:
        run_steering.stop_run(run_id, actor, reason=reason)


def _fits(run: RequeueRun, action: str) -> bool:
    held = action == RESUME and run.state == RunState.RUNNING and run.wait in HELD
    return held or (action == STOP and run.active) or (action in (RESUME, TEST) and run.state == RunState.PAUSED)


def _unproven(run: RequeueRun) -> bool:
    """Return True if the others would be sent though a message has failed, or none has shown that they succeed."""
    return run_steering.retestable(run) or (run.wait in run_steering.SILENT and run.tested_late is None)


def _lacks_reason(run: RequeueRun, action: str, reason: str) -> str:
    if action == RESUME:
        return run_steering.resume_lacks_reason(run, reason)
    return _("Enter a reason: it is kept in the audit log.") if action == STOP and not reason.strip() else ""


def _test_label(run: RequeueRun, changed: int = 0) -> str:
    others = max(run.unsent - changed - 1, 0)
    text = ngettext(
        "Send one again, the other one after it was processed",
        "Send one again, the other %(count)d after it was processed",
        others,
    )
    return counted(text, count=others)


def _ask(pages: Pages, request: HttpRequest, run: RequeueRun, action: str, wrong: str) -> HttpResponse:
    changed, edited = (0, 0) if run.retries_of else (changed_in(run), edited_in(run))
    context: dict[str, Any] = {
        STOP: {"title": _("Stop requeue run %(number)s") % {"number": run.pk}, "danger": True},
        RESUME: {"title": _("Resume requeue run %(number)s") % {"number": run.pk}, "danger": False},
        TEST: {"title": _test_label(run, changed), "danger": False},
    }[action]
    sends = action in (RESUME, TEST) and not run.retries_of
    mine = ParkedMessage.objects.filter(pk__in=pending(run.pk).values("message"))
    return pages.page(
        request,
        "requeuerun/control.html",
        status=422 if wrong else 200,
        run=run,
        action=action,
        # What was edited stays parked.
        effect=_effect(run, action, run.unsent - changed + (edited if action == STOP else 0)),
        warning=STOOD_STILL.get(run.wait, run.get_wait_display()) if action == RESUME and _unproven(run) else "",
        works=action == RESUME and run_steering.shown_to_work(run),
        under_way=[one for one in under_way(mine) if one.run.pk != run.pk] if sends else [],
        edited=_edited(edited) if sends else "",
        left_out=_changed(changed - edited) if sends else "",
        reason_needed=bool(_lacks_reason(run, action, "")),
        wrong={"reason": wrong} if wrong else {},
        **context,
    )


def _changed(count: int) -> str:
    """Return how many of its messages the run leaves out, because something else was done to them; empty if none."""
    text = ngettext(
        "%(count)d of the messages not sent yet was sent, discarded or put on hold since: it is left out.",
        "%(count)d of the messages not sent yet were sent, discarded or put on hold since: they are left out.",
        count,
    )
    return counted(text, count=count) if count > 0 else ""


def _edited(count: int) -> str:
    """Return how many of its messages the run leaves out, because they were edited meanwhile; empty if none was."""
    text = ngettext(
        "%(count)d of the messages not sent yet was edited since: it is left out. Requeue it again.",
        "%(count)d of the messages not sent yet were edited since: they are left out. Requeue them again.",
        count,
    )
    return counted(text, count=count) if count else ""


def _effect(run: RequeueRun, action: str, sendable: int) -> str:
    """Return what the action does, as a sentence, of so many of the unsent messages."""
    if action == STOP and run.retries_of:
        return _("Retries that were not sent wait until they are due. A stopped requeue run cannot be resumed.")
    if action == STOP and run.state == RunState.RUNNING:
        text = ngettext(
            "About %(count)d message is not sent yet; sending goes on until you press Stop. A stopped requeue run "
            "cannot be resumed.",
            "About %(count)d messages are not sent yet; sending goes on until you press Stop. A stopped requeue run "
            "cannot be resumed.",
            run.unsent,
        )
        return counted(text, count=run.unsent)
    if action == STOP:
        text = ngettext(
            "%(count)d message was not sent and stays parked. A stopped requeue run cannot be resumed.",
            "%(count)d messages were not sent and stay parked. A stopped requeue run cannot be resumed.",
            sendable,
        )
        return counted(text, count=sendable)
    if action == TEST and (queue := queue_of_test(run)):
        text = _(
            "One message of %(queue)s is sent, where most have failed. The others follow when it has been processed. "
            "If it fails again, the requeue run pauses again and sends nothing else."
        )
        return text % {"queue": queue}
    if action == TEST:
        return _(
            "One message is sent. The others follow when it has been processed. If it fails again, the requeue run "
            "pauses again and sends nothing else."
        )
    text = ngettext(
        "%(count)d message is sent, at %(rate)s per second.",
        "%(count)d messages are sent, at %(rate)s per second.",
        sendable,
    )
    return counted(text, count=sendable, rate=floatformat(run.rate, -1))
