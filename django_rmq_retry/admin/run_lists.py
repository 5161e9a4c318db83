"""The messages of a requeue run that had one outcome, or were perhaps handled twice, with what is known of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy

from django_rmq_retry.admin import steering
from django_rmq_retry.admin.pages import Pages, refusal, requires
from django_rmq_retry.health.begun import Begun, in_words
from django_rmq_retry.health.begun_in_runs import attempts_of, begun_by_identity, begun_in, begun_of
from django_rmq_retry.models import (
    Attempt,
    EarlyRetry,
    ItemReason,
    ItemState,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
)
from django_rmq_retry.parked.attempts_shelf import AttemptsShelf
from django_rmq_retry.parked.early_outcomes import HANDLED_TWICE, PERHAPS_TWICE
from django_rmq_retry.parked.operators import has_own_rules, own_rules_refusal
from django_rmq_retry.parked.outcome_texts import Handled, handled_after_another, how_often
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import second

PER_PAGE = 100


class Listed(NamedTuple):
    label: Any
    rows: Q


KINDS: Mapping[str, Listed] = {
    "handled_twice": Listed(gettext_lazy("Handled twice"), HANDLED_TWICE),
    "perhaps_twice": Listed(gettext_lazy("Perhaps handled twice"), PERHAPS_TWICE),
    **{
        state.value: Listed(state.label, Q(state=state))
        for state in (ItemState.FAILED, ItemState.SENT, ItemState.PROCESSED)
    },
}
"""The lists of a run by their names in an address."""
Row = RequeueItem | EarlyRetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One message of a run, and what is known of it now."""

    row: Row
    name: str
    error: str
    record: ParkedMessage | None
    told: str
    begun: Sequence[Begun]
    """The lost consumers that had begun it."""

    @property
    def sent_at(self) -> datetime | None:
        """When it was sent; of one whose driver died before it noted that, when it was about to."""
        return self.row.sent_at or (self.record.requeued_at if self.record else None)

    @property
    def often(self) -> str:
        """How often it was handled, or perhaps was."""
        most = max(self.row.handled + len(self.begun), 2) if self.row.redelivered else 0
        return how_often(self.row.handled, most)

    @property
    def begun_in_words(self) -> str:
        return in_words(self.begun)


def why_hidden(request: HttpRequest) -> str:
    """Return why a user may not see which retries a run has sent: the rules of a project are about parked messages."""
    return refusal(request, "view") or (own_rules_refusal() if has_own_rules(request.user) else "")


@requires("view_run", "view")
def outcomes(pages: Pages, request: HttpRequest, pk: int) -> HttpResponse:
    """List the messages of a run that had one outcome; of parked ones the user may see each."""
    run, kind = steering.run_of(str(pk)), KINDS.get(request.GET.get("of", ""))
    if kind is None:
        return HttpResponseRedirect(pages.address("requeuerun_change", pk))
    why = why_hidden(request) if run.retries_of else ""
    if why:
        return pages.refused(request, why)
    rows = run.parts.filter(kind.rows).order_by("pk")
    if not run.retries_of:
        rows = rows.select_related("message__group").defer("message__body", "message__properties")
    error = request.GET.get("error")
    if error is not None:
        rows = rows.filter(**{"error" if run.retries_of else "message__error": error})
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("p"))
    words = request.GET.copy()
    words.pop("p", None)
    seen = [one for one in page.object_list if run.retries_of or not refusal(request, "view", message=one.message)]
    return pages.page(
        request,
        "requeuerun/outcomes.html",
        title=f"{run}: {kind.label}" if error is None else f"{run}: {kind.label} · {error}",
        run=run,
        page=page,
        words=words.urlencode(),
        rows=_retries(run, seen) if run.retries_of else _messages(run, seen),
        listed=f"{request.GET['of']}_of_run" if not run.retries_of and request.GET["of"].endswith("twice") else "",
    )


def _retries(run: RequeueRun, rows: Sequence[EarlyRetry]) -> list[Known]:
    names = {row.identity for row in rows}
    records = ParkedMessage.objects.only("pk", "identity", "state", "requeued_at")
    known = {one.identity: one for some in with_one_of(records, "identity", names) for one in some}
    told, doubted = AttemptsShelf.told(names), any(_doubted(row) for row in rows)
    first = begun_by_identity(names, begun_in(run)) if doubted else {}
    return [
        Known(
            row=row,
            name=row.shown,
            error=row.error,
            record=known.get(row.identity),
            told=told.get(row.identity, ""),
            begun=first.get(row.identity, ()),
        )
        for row in rows
    ]


def _doubted(row: Row) -> bool:
    return row.redelivered or row.handled > 1


def _messages(run: RequeueRun, rows: Sequence[RequeueItem]) -> list[Known]:
    attempts = attempts_of(rows)
    first = begun_in(run) if any(_doubted(row) for row in rows) else {}
    return [
        Known(
            row=row,
            name=str(row.message),
            error=row.message.error if row.state == ItemState.FAILED else "",
            record=row.message,
            told=_told(row, attempts.get((row.message.identity, row.cycle), [])),
            begun=begun_of(run, row, first, attempts),
        )
        for row in rows
    ]


def _told(row: RequeueItem, attempts: Sequence[Attempt]) -> str:
    """Return when and by whom a message that was perhaps handled twice was handled in its run."""
    handled = Handled.of(attempts, [row])
    if handled.again:
        return str(handled)
    if row.state == ItemState.FAILED and row.redelivered:
        return str(ItemReason.WORKER_STOPPED.label)
    if not row.redelivered or not handled.attempts:
        return str(handled)
    last = handled.attempts[-1]
    return handled_after_another(last, second(last.ended_at))
