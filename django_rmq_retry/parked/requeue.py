"""Starts requeue runs."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import COLUMN_BYTES, short, short_reason
from django_rmq_retry.models import Action, GatedAct, ParkedMessage, RequeueRun, RunState
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.claims import end_expired_claims
from django_rmq_retry.parked.database import records_alias, transaction_of
from django_rmq_retry.parked.findings import RequeueTerms
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.items import count
from django_rmq_retry.parked.key_lists import mark_kept
from django_rmq_retry.parked.left_meanwhile import gone_from, left_meanwhile
from django_rmq_retry.parked.listing import add_left, freeze, lists_at_once, postpone
from django_rmq_retry.parked.operators import Actor, NothingChosen, Refused, lacks_reason
from django_rmq_retry.parked.requeue_options import DEFAULT_OPTIONS, RequeueOptions
from django_rmq_retry.parked.run_steps import send_run
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.publishing import outbox
from django_rmq_retry.recurring import thread_name

MOST_CAUSES = 1000
"""The most error groups that the record of a run names."""
TYPED_FROM = 1000
"""Above this the number must be typed, so that an operator does not send a million messages by habit."""


def start(
    selection: Selection, actor: Actor, options: RequeueOptions = DEFAULT_OPTIONS, *, reason: str = ""
) -> RequeueRun:
    """Freeze a selection as a run that any driver can send; nothing is sent yet. Its driver lists a large selection."""
    options.check()
    if not selection.count:
        raise NothingChosen(_("No message is chosen."))
    if lacks_reason(selection.count, reason):
        raise Refused(lacks_reason(selection.count, reason))
    description = selection.description
    wish = Wish(
        act=GatedAct.REQUEUE,
        count=selection.count,
        subject=description,
        reason=reason,
        selection=selection,
        terms=options.facts(),
    )
    require_second(actor, wish)
    end_expired_claims()
    now = database_clock.now(records_alias())
    run = RequeueRun(
        created_at=now,
        by_user_id=actor.user_id,
        by=actor.name,
        approved_by_user_id=actor.approval.user_id if actor.approval else None,
        approved_by=actor.approval.by if actor.approval else "",
        source=actor.source,
        reason=short_reason(reason),
        selection=selection.facts(),
        description=short(description, COLUMN_BYTES),
        target=options.target,
        rate=float(options.rate),
        max_depth=options.max_depth,
        stop_at=options.guard,
        one_by_one=options.one_by_one or "duplicates" not in options.include,
        canary=options.canary,
        include=sorted(options.include),
        permanent_confirmed=options.confirmed_permanent,
        **({"state": RunState.PLANNED} if options.planned else {"started_at": now}),
    )
    return _insert_run(run, selection, options.terms, actor)


@transaction_of(ParkedMessage)
def _insert_run(run: RequeueRun, selection: Selection, terms: RequeueTerms, actor: Actor) -> RequeueRun:
    using = records_alias()
    run.pk = None
    run.causes = _causes(selection.queryset())
    if EXCEPT in selection.filter:
        run.excluded = max(selection.undiminished().count() - selection.queryset().count(), 0)
    run.total = selection.count
    run.save(using=using, force_insert=True)
    found = (freeze if lists_at_once(selection) else postpone)(run, selection, terms)
    selection.check(found)
    if gone_from(selection, found):
        left = left_meanwhile(selection, found)
        run.causes = _causes(selection.queryset(), left)
        add_left(run, selection, left)
    count(run)
    run.save(using=using)
    mark_kept(selection.filter)
    facts: dict[str, Any] = {"selection": selection.facts(), "rate": run.rate}
    if lists_at_once(selection):
        facts["left_out"] = run.skipped
    options = {"target": run.target, "max_depth": run.max_depth, "stop_at": run.stop_at, "canary": run.canary}
    facts |= {name: value for name, value in options.items() if value}
    if terms.include or terms.confirmed_permanent:
        facts["include"] = sorted(terms.include) + ["permanent"] * terms.confirmed_permanent
    items = run.items.select_related("message").only("message__business_key", "message__message_id")
    one = items.first() if run.total == 1 else None
    log_action(
        actor,
        Action.REQUEUE,
        reason=run.reason,
        run=run.pk,
        # Of a filter that the run's driver lists later, nothing is left out yet.
        count=run.total - run.skipped,
        message=one.message_id if one is not None else None,
        subject=str(one.message) if one is not None else selection.subject,
        group=selection.group,
        facts=facts,
    )
    return run


def _causes(*several: QuerySet[ParkedMessage]) -> list[tuple[int, int]]:
    counts = Counter[int]()
    for rows in several:
        of_groups = rows.order_by().values_list("group").annotate(count=Count("pk")).order_by("-count", "group")
        counts.update(dict(of_groups[:MOST_CAUSES]))
    return counts.most_common(MOST_CAUSES)


def requeue(
    messages: Iterable[ParkedMessage | int], *, by: str | Actor, reason: str = "", wait: float = 10.0, **options: Any
) -> RequeueRun:
    """Requeue some records from code and send them now: ``requeue([record], by="nightly job", reason="bank is back")``.

    It returns when the messages are sent, or after ``wait`` seconds; a consumer then sends the rest. Options are those
    of ``RequeueOptions``: messages on hold, for example, are sent only with ``include=["on_hold"]``. The guard pauses
    the run, which then waits for an operator. Inside a transaction, the messages are sent after its commit.
    """
    actor = by if isinstance(by, Actor) else Actor.of_code(by)
    ids = [one.pk if isinstance(one, ParkedMessage) else int(one) for one in messages]
    run = start(Selection.of_ids(ids), actor, RequeueOptions(**{"rate": 100.0, **options}), reason=reason)

    def send() -> RequeueRun:
        return send_run(run.pk, thread_name("code"), for_seconds=wait, outcomes=False)

    if outbox.writer.open_transaction() is None:
        return send()
    transaction.on_commit(send, using=records_alias(), robust=True)
    return run
