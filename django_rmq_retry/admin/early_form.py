"""The preview of retries that are sent before they are due. A page that is shown again keeps what was typed."""

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin import broker_look, places
from django_rmq_retry.admin.choice import LeftOut, seen_by
from django_rmq_retry.admin.pages import Pages, refusal, requires
from django_rmq_retry.admin.requeue_form import missing_confirmations, number_to_type, targets_of, typed_number
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.messages.identity import text_digest
from django_rmq_retry.models import ErrorGroup
from django_rmq_retry.parked import early_runs, queue_pauses
from django_rmq_retry.parked.early_choice import RetryFilter
from django_rmq_retry.parked.early_retries import WaitingReport, report, ways_back
from django_rmq_retry.parked.key_lists import Excluded, current_matches, look_up
from django_rmq_retry.parked.key_text import parse, text_of_keys
from django_rmq_retry.parked.operators import Actor, Refused, has_own_rules, lacks_reason, own_rules_refusal
from django_rmq_retry.parked.requeue_options import DEFAULT_RATE, STOP_AT, RequeueOptions
from django_rmq_retry.parked.selection import number_in
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyForm:
    """What an operator has entered before waiting retries are sent."""

    queue: str
    wanted: RetryFilter
    keys: str
    options: RequeueOptions
    reason: str
    typed: str
    seen: str
    """The mark of the retries that the page had shown before its button was pressed."""

    @classmethod
    def read(cls, entered: QueryDict, *, posted: bool) -> "EarlyForm":
        """Read what was entered; keys only from a form, because to find their retries each waiting one is looked at."""
        keys = entered.get("keys", "").strip() if posted else ""
        left = [*parse(entered.get("except", "")), *entered.getlist("tick")] if posted else []
        groups = [pk for text in entered.getlist("group") if (pk := number_in(text)) is not None]
        wanted = RetryFilter(
            key=tuple(parse(keys)),
            error=tuple(entered.getlist("error")),
            handler=tuple(entered.getlist("handler")),
            group=tuple(groups),
            without=tuple(dict.fromkeys(left)),
        )
        guarded = not posted or bool(entered.get("guard"))
        return cls(
            queue=entered.get("queue", ""),
            wanted=wanted,
            keys=keys,
            options=RequeueOptions(
                rate=typed_number(entered.get("rate"), DEFAULT_RATE),
                stop_at=typed_number(entered.get("stop_at"), STOP_AT) if guarded else None,
                canary=entered.get("start") == "canary",
            ),
            reason=entered.get("reason", "").strip(),
            typed=entered.get("typed", "").strip(),
            seen=entered.get("seen", ""),
        )

    @property
    def mark(self) -> str:
        """Return a text that is another one for other conditions."""
        return text_digest(repr(self.wanted))[:16]


@requires("view_run", "send_waiting")
def preview(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Show which retries wait, why and until when; start the run if its button was pressed."""
    posted = request.method == "POST"
    try:
        form = EarlyForm.read(request.POST if posted else request.GET, posted=posted)
    except Refused as refused:
        return pages.refused(request, str(refused), status=422)
    if form.queue not in queue_pauses.queues():
        raise Http404(_("No handler reads this queue."))
    found, why_not, unreachable = _ask_broker(form)
    # The rules of a project are about parked messages: they cannot say of a waiting one who may see it.
    hidden = refusal(request, "view") or (own_rules_refusal() if has_own_rules(request.user) else "")
    left = _left_out(request, form, found, hidden=bool(hidden))
    wrong: dict[str, str] = {}
    if posted and "start" in request.POST and found is not None:
        wrong = _wrong(form, found, left)
        if not wrong:
            try:
                run = _start(request, form, found)
                return HttpResponseRedirect(pages.address("requeuerun_change", run.pk))
            except Refused as refused:
                wrong = {"all": str(refused)}
    count = found.count if found else 0
    look = broker_look.look()
    runs = early_runs.under_way(form.queue, form.wanted) if count else []
    button = counted(ngettext("Send %(count)d retry now", "Send %(count)d retries now", count), count=count)
    return pages.page(
        request,
        "requeuerun/waiting.html",
        title=_("Send waiting retries of %(queue)s") % {"queue": form.queue},
        status=422 if wrong else 200,
        form=form,
        found=found,
        left=left,
        due=() if hidden or not found else found.due,
        hidden=hidden,
        why_not=why_not or unreachable,
        refused=bool(why_not),
        unreachable=bool(unreachable) and bool(look.unreachable),
        groups=ErrorGroup.objects.filter(pk__in=form.wanted.group) if form.wanted.group else (),
        button=button,
        under_way=runs,
        leads=pages.button_of_run(request, runs[-1][0]) if runs else [],
        others=count - 1,
        seconds=count / form.options.rate if form.options.rate and count else None,
        number_to_type=number_to_type(count),
        reason_needed=bool(lacks_reason(count, "")),
        look=look,
        levels=targets_of([(form.queue, count)] if found else [], look),
        wrong=wrong,
        disabled=not count,
    )


def _left_out(request: HttpRequest, form: EarlyForm, found: WaitingReport | None, *, hidden: bool) -> LeftOut:
    """Return the keys to leave out, and where the messages are whose keys no waiting retry has."""
    keys = form.wanted.without
    if not keys or found is None:
        return LeftOut(text=text_of_keys(keys))
    known, seen = found.left, seen_by(request)
    alike = {} if hidden else known.alike
    missing = [key for key in known.missing if key not in alike]
    elsewhere = current_matches(missing, look_up(missing, seen), seen, places.rooms_of(request))
    effect = Excluded(
        keys=keys,
        messages=known.count,
        missing=[*alike, *elsewhere.missing],
        alike={**alike, **elsewhere.alike},
        elsewhere=elsewhere.matches,
        several={},
        unparked=elsewhere.elsewhere,
        in_content=elsewhere.in_content,
    )
    return LeftOut(text=text_of_keys(keys), effect=effect, ticked=request.POST.get("checked", ""))


def _ask_broker(form: EarlyForm) -> tuple[WaitingReport | None, str, str]:
    """Return what waits; without it why these retries cannot be sent, or why the broker does not tell."""
    try:
        ways_back(form.queue)
        with broker_connections.connections.session(purpose="admin", patience=broker_look.AWAY_SECONDS) as session:
            if session is None:
                return None, "", _("The broker does not answer.")
            return report(session, form.queue, form.wanted), "", ""
    except Refused as refused:
        return None, str(refused), ""
    except (RmqRetryError, Refusal, OSError) as error:
        return None, "", str(error)


def _start(request: HttpRequest, form: EarlyForm, found: WaitingReport) -> Any:
    return early_runs.start(
        form.queue,
        Actor.of_request(request),
        form.options,
        count=found.count,
        delayed=found.delayed,
        wanted=form.wanted,
        left=found.left,
        reason=form.reason,
    )


def _wrong(form: EarlyForm, found: WaitingReport, left: LeftOut) -> dict[str, str]:
    if form.seen != form.mark:
        # The operator has to see first which retries these are.
        return {
            "all": _("Nothing was sent, because the choice had changed. Check the result and press the button again.")
        }
    if left.unchecked:
        return {"checked": left.unchecked}
    wrong = missing_confirmations(chosen=found.count, sent=found.count, reason=form.reason, typed=form.typed)
    return wrong if found.count else {**wrong, "all": _("No retry waits any more.")}
