"""The one page that asks before messages are requeued, for one as for a million. Looking at it changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from django_rmq_retry import registry
from django_rmq_retry.admin import allowing, choosing, labels, looking
from django_rmq_retry.admin.pages import Pages
from django_rmq_retry.broker.gauging import Level
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.checking import Finding, Report, Terms, report
from django_rmq_retry.operating.refusals import Refused
from django_rmq_retry.operating.requeueing import REASON_FROM, UNFIT, start
from django_rmq_retry.operating.selecting import Selection

TYPED_FROM = 1000
"""Above this the number is typed, so that nobody sends a million messages by a habit of the hand."""
SAID: Mapping[str, Any] = {
    "resolved": ngettext_lazy("%(count)d is not open any more", "%(count)d are not open any more", "count"),
    "changed": ngettext_lazy(
        "%(count)d was changed since it was chosen", "%(count)d were changed since they were chosen", "count"
    ),
    "queueless": ngettext_lazy(
        "%(count)d came from a queue that nobody knows", "%(count)d came from a queue that nobody knows", "count"
    ),
    "succeeded": ngettext_lazy(
        "%(count)d was handled already: a copy of it succeeded",
        "%(count)d were handled already: a copy of each succeeded",
        "count",
    ),
    "unconfirmed": ngettext_lazy(
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "%(count)d may have been delivered: an earlier requeue was not confirmed",
        "count",
    ),
    "permanent": ngettext_lazy(
        "%(count)d has a permanent error: a requeue alone will not help",
        "%(count)d have a permanent error: a requeue alone will not help",
        "count",
    ),
    "late": ngettext_lazy("%(count)d is older than the cut-off", "%(count)d are older than the cut-off", "count"),
    "unhandled": ngettext_lazy(
        "%(count)d is in a queue that no handler of this project reads",
        "%(count)d are in queues that no handler of this project reads",
        "count",
    ),
    "duplicates": ngettext_lazy(
        "%(count)d shares a business key with another one: sent oldest first, one at a time",
        "%(count)d share a business key with another one: sent oldest first, one at a time",
        "count",
    ),
    "edited": ngettext_lazy("%(count)d is sent as it was edited", "%(count)d are sent as they were edited", "count"),
    "held": ngettext_lazy("%(count)d is on hold", "%(count)d are on hold", "count"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What stands in the form."""

    rate: float = 20.0
    max_depth: int | None = 1000
    stop_at: float | None = 20.0
    reason: str = ""
    target: str = ""
    one_by_one: bool = False
    canary: bool = False
    include: frozenset[str] = field(default_factory=frozenset)
    fixed: bool = False
    typed: str = ""

    @classmethod
    def read(cls, request: HttpRequest) -> "Wish":
        """As it was filled in; what is no number becomes the number that stood there."""
        said = request.POST
        if request.method != "POST":
            return cls(canary=bool(request.GET.get("canary")))
        wish = cls(
            rate=number(said.get("rate"), 20.0),
            max_depth=int(number(said.get("max_depth"), 1000)) if said.get("wait") else None,
            stop_at=number(said.get("stop_at"), 20.0) if said.get("guard") else None,
            reason=said.get("reason", "").strip(),
            target=said.get("target", ""),
            one_by_one=said.get("order") == "key",
            canary=bool(said.get("canary")),
            include=frozenset(said.getlist("include")),
            fixed=bool(said.get("fixed")),
            typed=said.get("typed", "").strip(),
        )
        toggled = said.get("toggle")
        return replace(wish, include=wish.include ^ {toggled}) if toggled else wish

    @property
    def terms(self) -> Terms:
        return Terms(target=self.target, include=self.include, confirmed_permanent=self.fixed)


def view(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Show what would be sent and what speaks against it; start the run where that button was pressed."""
    why = allowing.refusal(request, "requeue")
    if why:
        return pages.refused(request, why)
    wish = Wish.read(request)
    try:
        there = choosing.frozen(request)
        if there is not None:
            return there
        selection = choosing.chosen(request)
        found = report(selection, wish.terms)
    except Refused as refusal:
        return pages.page(request, "gone.html", title=_("Requeue"), status=400, why=str(refusal))
    forbidden = choosing.forbidden(request, "requeue", selection)
    starting = request.method == "POST" and "start" in request.POST
    if starting and forbidden:
        return pages.refused(request, forbidden)
    wrong = _wrong(wish, found) if starting else {}
    if starting and not wrong:
        try:
            return _start(pages, request, selection, wish)
        except Refused as refusal:
            wrong = {"all": str(refusal)}
    return _page(pages, request, selection, wish, found=found, wrong=wrong, forbidden=forbidden)


def number(text: str | None, otherwise: float) -> float:
    """A number above zero that somebody typed."""
    try:
        found = float((text or "").replace(",", "."))
    except ValueError:
        return otherwise
    return found if 0 <= found < float("inf") else otherwise


def _start(pages: Pages, request: HttpRequest, selection: Selection, wish: Wish) -> HttpResponse:
    run = start(
        selection,
        Actor.of_request(request),
        rate=wish.rate,
        max_depth=wish.max_depth,
        stop_at=wish.stop_at,
        reason=wish.reason,
        target=wish.target,
        one_by_one=wish.one_by_one,
        canary=wish.canary or request.POST["start"] == "canary",
        include=wish.include,
        confirmed_permanent=wish.fixed,
        planned=request.POST["start"] == "planned",
    )
    return HttpResponseRedirect(pages.address("requeuerun_change", run.pk))


def _wrong(wish: Wish, found: Report) -> dict[str, str]:
    """What has to be filled in first."""
    wrong = {}
    if found.total > REASON_FROM and not wish.reason:
        wrong["reason"] = _("Say why: more than %(count)d messages need a reason.") % {"count": REASON_FROM}
    if found.sendable > TYPED_FROM and wish.typed.replace(",", "").replace(" ", "") != str(found.sendable):
        wrong["typed"] = _("Type %(count)d to requeue that many messages.") % {"count": found.sendable}
    if not found.sendable:
        wrong["all"] = _("Nothing is left to requeue.")
    return wrong


def _page(
    pages: Pages, request: HttpRequest, selection: Selection, wish: Wish, *, found: Report, wrong: Any, forbidden: str
) -> HttpResponse:
    seen = looking.look()
    title = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", found.total)
    many = ngettext("Requeue %(count)d message", "Requeue %(count)d messages", found.sendable)
    asking = [finding for finding in found.findings if finding.name == "permanent"]
    return pages.page(
        request,
        "requeuerun/preview.html",
        title=title % {"count": found.total},
        status=422 if wrong else 200,
        selection=selection,
        chosen=labels.chosen(selection.facts()),
        token=selection.token(),
        again=choosing.again(request, selection) if "all" in wrong else "",
        wish=wish,
        report=found,
        findings=[
            (choosing.seen(request, one), said(one), one.name in wish.include)
            for one in found.findings
            if one.name != "permanent"
        ],
        permanent=asking[0] if asking else None,
        button=many % {"count": found.sendable},
        typed_from=TYPED_FROM if found.sendable > TYPED_FROM else 0,
        reason_needed=found.total > REASON_FROM,
        seconds=found.sendable / wish.rate if wish.rate else None,
        targets=_targets(),
        sample=choosing.sample(request, selection),
        look=seen,
        levels=levels(found, seen),
        wrong=wrong,
        forbidden=forbidden,
        disabled=bool(forbidden) or not found.sendable or bool(seen.away),
    )


def said(finding: Finding) -> str:
    """What was found, in words and numbers."""
    return str(SAID[finding.name] % {"count": finding.count})


def levels(found: Report, seen: looking.Look) -> list[tuple[str, int, Level | None, list[str]]]:
    """Where messages would go, how many, and how it looks there."""
    there = [(queue, count, seen.level(queue)) for queue, count in found.queues[:5]]
    return [
        (queue, count, level, list(map(labels.trouble, level.problems if level else ())))
        for queue, count, level in there
    ]


def _targets() -> list[str]:
    queues = registry.topology().queues
    return [name for name, one in queues.items() if one.role not in UNFIT]
