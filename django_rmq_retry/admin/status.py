"""The Live status page: what needs somebody first, then the numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.contrib import admin
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry.admin import broker_look, handler_rows
from django_rmq_retry.admin.checked import checked_page
from django_rmq_retry.admin.handled_again import handled_again_page
from django_rmq_retry.admin.handler_rows import COLUMNS, HandlerRow
from django_rmq_retry.admin.pages import Button, Pages, frame_of, refusal
from django_rmq_retry.admin.queues import StoppedQueues
from django_rmq_retry.admin.run_state import sum_of
from django_rmq_retry.admin.runs import badge_of
from django_rmq_retry.admin.timeline import activity
from django_rmq_retry.attempts.history import failed_since
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.condition import waiting_messages
from django_rmq_retry.health.doubts import LOOPS, OF_RUNS, checked_lately
from django_rmq_retry.health.facts import MOST_RECENT, Survey, Unmigrated, survey
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.problems import blind
from django_rmq_retry.health.processes import queues_read, readers
from django_rmq_retry.health.rules import ActingPage, Code, Problem, Severity
from django_rmq_retry.markup import visible
from django_rmq_retry.models import LiveStatus, ParkedMessage, RequeueRun, State
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.held_up import in_few_words
from django_rmq_retry.parked.operators import LABEL
from django_rmq_retry.wording import number


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonTarget:
    """Where a button leads: its words, the name of the page, and the permission that the page needs."""

    label: Any
    page: str
    verb: str
    query: str = ""


TARGETS: Mapping[ActingPage, ButtonTarget] = {
    ActingPage.CONSUMERS: ButtonTarget(
        label=gettext_lazy("Consumers"), page="consumerprocess_changelist", verb="view_status"
    ),
    ActingPage.QUEUES: ButtonTarget(
        label=gettext_lazy("Open the queues"), page="queuecontrol_changelist", verb="view_queue"
    ),
    ActingPage.GROUPS: ButtonTarget(
        label=gettext_lazy("Error groups"), page="errorgroup_changelist", verb="view_group"
    ),
    ActingPage.OUTBOX: ButtonTarget(
        label=gettext_lazy("Open the outbox"), page="outboxmessage_changelist", verb="view_outbox"
    ),
    ActingPage.KEYS: ButtonTarget(label=gettext_lazy("Blocked keys"), page="blockedkey_changelist", verb="view_key"),
    ActingPage.REQUEUED: ButtonTarget(
        label=gettext_lazy("Parked messages"),
        page="parkedmessage_changelist",
        verb="view",
        query="?state=requeued&no_outcome=1",
    ),
    ActingPage.MESSAGES: ButtonTarget(
        label=gettext_lazy("Show these messages"), page="parkedmessage_changelist", verb="view"
    ),
    ActingPage.HANDLED_AGAIN: ButtonTarget(
        label=gettext_lazy("Show these messages"), page="livestatus_handled_again", verb="view_status"
    ),
    ActingPage.REQUESTS: ButtonTarget(
        label=gettext_lazy("Approval requests"), page="approvalrequest_changelist", verb="view_request"
    ),
}
QUEUE = replace(TARGETS[ActingPage.QUEUES], label=gettext_lazy("Open the queue"))
OF_ONE_QUEUE = (
    Code.BREAKER_OPEN,
    Code.PAUSED,
    Code.PAUSED_LONG,
    Code.HALTED,
    Code.HALTED_LONG,
    Code.GIVEN_AGAIN,
)
"""The problems of one work queue, to which the page of queues is narrowed down."""
ALL_GROUPS = replace(TARGETS[ActingPage.GROUPS], label=gettext_lazy("All error groups"))
FIRST_MESSAGE = ButtonTarget(
    label=gettext_lazy("What is known of its first message"), page="queuecontrol_first", verb="view"
)
TWICE_IN_RUN = {Code.HANDLED_TWICE: "handled_twice", Code.RUN_PERHAPS_TWICE: "perhaps_twice"}
"""The lists of the messages that a finding on a requeue run counts."""
OF_RUN = TARGETS[ActingPage.MESSAGES]
CHECKED = ButtonTarget(label=gettext_lazy("Checked…"), page="livestatus_checked", verb="discard")
HAS_ENDED = replace(CHECKED, label=gettext_lazy("It has ended…"))
"""Where an operator ends a finding that only records a doubt."""
MOST_RUNS, MOST_RUNS_ON_A_CARD = 5, 3
RUN_BESIDE = ButtonTarget(label=gettext_lazy("Open requeue run %(number)s"), page="requeuerun_change", verb="view_run")
"""The page of a run that a problem of something else names."""
OF_ONE: Mapping[ActingPage, ButtonTarget] = {
    ActingPage.GROUPS: ButtonTarget(label=gettext_lazy("Open the group"), page="errorgroup_change", verb="view_group"),
    ActingPage.RUN: ButtonTarget(label=gettext_lazy("Open the requeue run"), page="requeuerun_change", verb="view_run"),
    ActingPage.MESSAGE: ButtonTarget(label=gettext_lazy("Open the message"), page="parkedmessage_change", verb="view"),
    ActingPage.REQUESTS: ButtonTarget(
        label=gettext_lazy("Open the request"), page="approvalrequest_change", verb="view_request"
    ),
}
"""The page of the one row that a problem is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One problem as a row of the page, with its button, or the command that repairs it."""

    problem: Problem
    buttons: tuple[Button, ...] = ()
    """The first is its button; the others are links to what its sentences name."""
    following: tuple["Need", ...] = ()
    """What only follows from it."""

    @property
    def is_error(self) -> bool:
        return self.problem.severity is Severity.ERROR

    @property
    def kind(self) -> str:
        """What it is about, in the words of the pages, where it is only counted."""
        page = self.problem.rule.page
        if self.problem.code in (Code.PAUSED, Code.PAUSED_LONG):
            return _("paused queues")
        if page is None:
            return _("others")
        target = TARGETS.get(page) or OF_ONE[page]
        model = apps.get_model(LABEL, target.page.partition("_")[0])
        return str(model._meta.verbose_name_plural)  # noqa: SLF001 - Django's own API

    @property
    def under_way(self) -> bool:
        """True if somebody is at it, so that it needs nobody else."""
        return self.problem.rule.under_way

    @property
    def links(self) -> list[Button]:
        """Where else it leads, for a user who may go there."""
        return [one for one in self.buttons[1:] if not one.why]

    @property
    def command(self) -> str:
        """The repair, if it is a command alone: other texts of the rules are not translated."""
        return self.problem.fix if not self.buttons and self.problem.fix.startswith("manage.py ") else ""

    @classmethod
    def of(cls, problem: Problem, request: HttpRequest, address: Callable[..., str]) -> "Need":
        page = problem.rule.page
        if page is None:
            return cls(problem=problem)
        one = OF_ONE.get(page) if problem.subject else None
        target, where = (one, (problem.subject,)) if one else (TARGETS[page], ())
        if problem.code in OF_ONE_QUEUE:
            target = replace(QUEUE, query=f"?{urlencode({'q': problem.subject})}")
        if problem.code is Code.OUTBOX_FAILED:
            target = replace(target, query="?state=failed")
        named: list[tuple[ButtonTarget, tuple[Any, ...]]] = []
        if one and problem.values.get("mixed"):
            named.append((one, where))
            one, target, where = None, TARGETS[page], ()
        runs: Any = problem.values.get("runs", ())
        request_of, behind = problem.values.get("request"), problem.values.get("behind")
        named += [(RUN_BESIDE, (run,)) for run in runs]
        if words := TWICE_IN_RUN.get(problem.code):
            of_run = replace(OF_RUN, page="requeuerun_outcomes", query=f"?of={words}")
            named += [(of_run, (problem.subject,))]
        if group := problem.values.get("group_of_killer"):
            named.append((OF_ONE[ActingPage.GROUPS], (group,)))
        asked = [(OF_ONE[ActingPage.REQUESTS], (request_of,))] if request_of else []
        # The page of the largest cause leads to no other cause.
        others = [(ALL_GROUPS, ())] if one and problem.values.get("others") else []
        first = problem.values.get("first")
        known = [(replace(FIRST_MESSAGE, query=f"?{urlencode({'queue': problem.subject})}"), ())] if first else []
        shown = [
            (target, where),
            *named,
            *others,
            *asked,
            *known,
            *([(TARGETS[ActingPage.KEYS], ())] if behind else []),
            *([(_ended_by_hand(problem), ())] if problem.doubts else []),
        ]
        buttons = [
            Button(
                label=str(target.label) % {"number": where[0] if where else ""},
                address=address(target.page, *where) + target.query,
                why=refusal(request, target.verb),
                describes="" if target is RUN_BESIDE or page is ActingPage.HANDLED_AGAIN else visible(problem.subject),
            )
            for target, where in shown
        ]
        return cls(problem=problem, buttons=tuple(buttons))


def _ended_by_hand(problem: Problem) -> ButtonTarget:
    target = HAS_ENDED if problem.code is Code.VANISHED_IN_HAND else CHECKED
    run = {"run": problem.subject} if problem.code in (*OF_RUNS, *LOOPS) else {}
    return replace(target, query=f"?{urlencode({'code': problem.code.name, **run})}")


@admin.register(LiveStatus)
class LiveStatusAdmin(Pages):
    sees = "view_status"
    one_page = True

    def own_urls(self) -> list[URLPattern]:
        return [
            self.own_url("handled_again/", "handled_again", partial(handled_again_page, self)),
            self.own_url("checked/", "checked", partial(checked_page, self)),
        ]

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        known = survey(page=True)
        broker_look.remember(known.declared)
        seen = broker_look.look()
        shown = seen.last or seen
        health = _health(known, seen)
        states, read = [state_of(one) for one in known.stopped], queues_read(known.processes, known.at)
        stopped = StoppedQueues.of_states(states, known.at.timestamp(), read)
        homes = handler_rows.homes(health.judged or handler_rows.unseen())
        current = not (seen.unreachable or seen.late)
        waiting, of_queues = waiting_messages(shown.levels, known.at)
        rows = handler_rows.handler_rows(
            homes,
            recorded=known.parked_in,
            stopped=stopped.badges,
            halts=health.halts,
            waiting=of_queues,
            behind=known.blocked.by_queue,
            read=readers(known.processes, known.at),
            current=current,
        )
        busy, fine = [row for row in rows if not row.is_fine], [row for row in rows if row.is_fine]
        return self.page(
            request,
            "livestatus/status.html",
            part="parts/status.html",
            title=_("Live status"),
            look=seen,
            asked_at=known.at,
            shown=shown,
            current=current,
            busy=_table(busy),
            fine=_table(fine),
            finds=not refusal(request, "view"),
            may_send=not refusal(request, "view_run", "send_waiting"),
            sees_keys=not refusal(request, "view_key"),
            database_ms=round(known.seconds * 1000),
            blind=_unknown_figures(shown, request) if shown.levels else "",
            **self._needs(health, request),
            counts=_counts(known) | {"waiting": waiting},
            declared=bool(registry.registrations()),
            checks=checked_lately(known.checked, known.at),
            sees_audit=not refusal(request, "view_audit"),
            runs=[(run, badge, sum_of(run)) for run, badge in _latest_runs(known, seen, MOST_RUNS)],
            **activity(request, most=5),
        )

    def frame(self, request: HttpRequest) -> dict[str, Any]:
        """Return the context of our frame, for the pages of Django that have it."""
        return frame_of(request)

    def verdict(self, request: HttpRequest) -> str:
        """Return how much needs somebody, for the index of the site; empty if nothing does, or it is not known."""
        if refusal(request, "view_status"):
            return ""
        try:
            count = self.summary(request)["count"]
        except (Error, Unmigrated):
            return ""
        text = ngettext("%(counter)s thing needs you", "%(counter)s things need you", count)
        return text % {"counter": number(count)} if count else ""

    def summary(self, request: HttpRequest) -> dict[str, Any]:
        """Return what the index of the app says: the same findings, by the same look at the broker."""
        known = survey(page=True)
        broker_look.remember(known.declared)
        seen, parked = broker_look.look(), known.parked.count
        health = _health(known, seen)
        return {
            "status": self.address("livestatus_changelist"),
            "look": seen,
            "asked_at": known.at,
            "shown": seen.last or seen,
            "current": not (seen.unreachable or seen.late),
            **self._needs(health, request),
            "parked": parked,
            "number": number(parked),
            "groups": known.parked.groups,
            "runs": _latest_runs(known, seen, MOST_RUNS_ON_A_CARD),
            "sees_runs": not refusal(request, "view_run"),
        }

    def _needs(self, health: Health, request: HttpRequest) -> dict[str, Any]:
        """Return the rows of the findings, and how many need somebody.

        The banner above them has the one that the broker is away, and those that only follow from it.
        """
        following = health.following
        causes = [one for one in health.needs if one not in following]
        needs = [
            replace(
                Need.of(cause, request, self.address),
                following=tuple(Need.of(one, request, self.address) for one in health.followers(cause)),
            )
            for cause in causes
        ]
        away = [follower for one in needs if one.problem is health.away for follower in one.following]
        rows = [one for one in needs if one.problem is not health.away]
        count = sum(not one.rule.under_way for one in causes)
        return {"needs": rows, "following": away, "count": count, "under_way": count < len(causes)}


def _health(known: Survey, seen: broker_look.Look) -> Health:
    """Judge the queues as the broker told of them last: a problem of one does not end with the broker's answers."""
    shown = seen.last or seen
    earlier = bool(seen.unreachable or seen.late) and bool(shown.levels)
    as_of = shown.at if earlier else None
    return Health(survey=known, gauged=shown.gauged, looked_at=shown.at, as_of=as_of, away=seen.away)


def _latest_runs(known: Survey, seen: broker_look.Look, most: int) -> list[tuple[RequeueRun, SafeString]]:
    """Return the latest active runs, each with its badge, which names a stopped queue that it waits for."""
    runs = known.runs[::-1][:most]
    return [(run, badge_of(run, seen, held=in_few_words(known.held.get(run.pk, ())))) for run in runs]


def _unknown_figures(shown: broker_look.Look, request: HttpRequest) -> object:
    """Return why figures are missing: who may change no setting reads none."""
    why = blind(shown.gauged)
    if not why or request.user.is_superuser:
        return why
    return _("Unacked messages and rates are not known here.")


def _table(rows: Sequence[HandlerRow]) -> dict[str, Any]:
    """Return what a table of rows shows: its columns, and each row with its cells."""
    names = handler_rows.columns(rows)
    cells = [(row, row.cells(names)) for row in rows]
    return {"columns": [COLUMNS[name] for name in names], "rows": cells, "quarantined": "quarantine" in names}


def _recent_parts(known: Survey) -> str:
    """Return which of the messages parked lately are new, and how many of them are parked now; empty if all are."""
    of = known.parked
    new, again, still = of.recent - of.recent_again, of.recent_again, of.recent_still
    fewer = still is not None and still < of.recent
    parts = (
        # Where all are new, their number stands above.
        (bool(again and new), new, ngettext("%(counter)s new", "%(counter)s new", new)),
        (bool(again), again, ngettext("%(counter)s failed again", "%(counter)s failed again", again)),
        (fewer, still or 0, ngettext("%(counter)s still parked", "%(counter)s still parked", still or 0)),
    )
    return " · ".join(text % {"counter": number(count)} for told, count, text in parts if told)


def _counts(known: Survey) -> dict[str, Any]:
    """Return the figures of the tiles that need no broker, with two further queries."""
    failed = failed_since(known.at - timedelta(minutes=1), most=MOST_RECENT)
    held = ParkedMessage.objects.using(records_alias()).filter(state=State.ON_HOLD).order_by()
    ends = list(held.values_list("held_until", flat=True)[: MOST_RECENT + 1])
    return {
        "held": min(len(ends), MOST_RECENT),
        "held_at_least": len(ends) > MOST_RECENT,
        "hold_ends": min(filter(None, ends), default=None),
        "parked": known.parked.count,
        "oldest": known.parked.oldest,
        "recent": known.parked.recent,
        "recent_parts": _recent_parts(known),
        "failed": min(failed, MOST_RECENT),
        "failed_at_least": failed > MOST_RECENT,
    }
