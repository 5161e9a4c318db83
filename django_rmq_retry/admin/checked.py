"""The page on which an operator ends a finding that only records a doubt, by saying that it was checked."""

from collections.abc import Sequence
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_rmq_retry.admin.pages import Pages, migrated, refusal, requires
from django_rmq_retry.admin.run_lists import why_hidden
from django_rmq_retry.health.doubts import (
    GONE,
    LOOPS,
    OF_PROCESSES,
    OF_RUNS,
    Doubted,
    check,
    doubted,
    doubts_of,
    part_of,
)
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.parked.checked import mark
from django_rmq_retry.parked.operators import Actor, Outdated, Refused, has_own_rules
from django_rmq_retry.parked.outcome_texts import how_often

MOST_LISTED = 500
"""The most messages that the page lists; there is a page with all of them."""


@migrated
@requires("view_status", "discard")
def checked_page(pages: Pages, request: HttpRequest) -> HttpResponse:
    """Show the finding with all that it is about, and ask for a reason; end it as it was shown."""
    asked = request.POST or request.GET
    found = doubts_of(asked.get("code", "")).get(asked.get("run", ""))
    back = HttpResponseRedirect(pages.address("livestatus_changelist"))
    if found is None:
        messages.warning(request, GONE)
        return back
    each = doubted(found)
    if why := _unseen(request, found, each):
        return pages.refused(request, why)
    wrong, seen = "", mark(*sorted(found.doubts))
    ticked = _ticked(request, found, each)
    if request.method == "POST":
        try:
            _check(request, part_of(found, ticked), seen)
        except Outdated as refused:
            messages.warning(request, str(refused))
        except Refused as refused:
            wrong = str(refused)
        if not wrong:
            return back
    finds = not refusal(request, "view")
    return pages.page(
        request,
        "livestatus/checked.html",
        title=_title(found),
        status=422 if wrong else 200,
        found=found,
        ended=found.code is Code.VANISHED_IN_HAND,
        loop=found.code in LOOPS,
        processes=found.code in OF_PROCESSES,
        each=[
            (one, one.mark in ticked, _address(pages, one) if finds else "", _in_doubt(one))
            for one in each[:MOST_LISTED]
        ],
        count=len(each),
        some=len(found.doubts) > 1,
        more=len(each) > MOST_LISTED,
        listed=_list_of(pages, found),
        seen=seen,
        run=asked.get("run", ""),
        typed=request.POST,
        wrong={"all": wrong} if wrong else {},
    )


def _title(found: Problem) -> str:
    ended, some = found.code is Code.VANISHED_IN_HAND, len(found.doubts) > 1
    if ended:
        return _("The ticked ones have ended") if some else _("The process has ended")
    return _("The ticked ones were checked") if some else _("All of this was checked")


def _ticked(request: HttpRequest, found: Problem, each: Sequence[Doubted]) -> set[str]:
    """Return the doubts that are ticked, at first all that are listed. A single one is not asked for: it is all."""
    if len(found.doubts) == 1:
        return set(found.doubts)
    if request.method == "POST":
        return set(request.POST.getlist("tick"))
    return set() if request.GET.get("tick") == "none" else {one.mark for one in each[:MOST_LISTED]}


def _unseen(request: HttpRequest, found: Problem, each: Sequence[Doubted]) -> str:
    """Return why a user may not see some of the messages: nobody says of these that they were checked."""
    if found.code in OF_RUNS and not any(one.record for one in each):
        return why_hidden(request)
    records = [one.record for one in each if one.record] if has_own_rules(request.user) else []
    return next(filter(None, (refusal(request, "view", message=one) for one in records)), "")


def _address(pages: Pages, one: Doubted) -> str:
    """Return the page of a message, or a search for one that has no record."""
    if one.record is not None:
        return pages.address("parkedmessage_change", one.record.pk)
    if not one.identity or not one.name:
        return ""
    return f"{pages.address('parkedmessage_changelist')}?{urlencode({'q': one.name})}"


def _in_doubt(one: Doubted) -> str:
    """Return what is in doubt of a message; more than two times, how many."""
    most = one.handled + len(one.begun)
    return how_often(one.handled, most) if most > 2 else one.word  # noqa: PLR2004


def _list_of(pages: Pages, found: Problem) -> str:
    """Return the page that says of each what is known."""
    if found.code in OF_PROCESSES:
        return pages.address("consumerprocess_changelist")
    if found.code in OF_RUNS:
        word = "handled_twice" if found.code is Code.HANDLED_TWICE else "perhaps_twice"
        return f"{pages.address('requeuerun_outcomes', found.subject)}?of={word}"
    return "" if found.code is Code.HANDLED_ANYWAY else pages.address("livestatus_handled_again")


def _check(request: HttpRequest, found: Problem, seen: str) -> None:
    if request.POST.get("seen") != seen:
        raise Refused(
            _("Nothing was changed: the finding is not the one that you have seen. This is what it says now.")
        )
    check(found, Actor.of_request(request), reason=request.POST.get("reason", ""))
    messages.success(request, _("This is in the audit log, with your reason. What comes later is told again."))
