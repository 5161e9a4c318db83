"""The audit log: adds the actions of operators, and finds out whether the rows are those that were added."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial, reduce
from operator import and_
from typing import Any

from django.db import router, transaction
from django.db.models import BigIntegerField, Count, F, Q, QuerySet, Subquery, TextField
from django.db.models.functions import Cast

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import COLUMN_BYTES, short, short_reason
from django_rmq_retry.models import (
    Action,
    AuditHead,
    BusinessKey,
    DiscardCategory,
    EarlyRetry,
    FormerName,
    ItemState,
    ListedKey,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
)
from django_rmq_retry.models.audit import GROUPS, MESSAGES, both_names
from django_rmq_retry.models.parked import folded
from django_rmq_retry.models.runs import STILL_TO_SEND
from django_rmq_retry.parked.admin_history import add_entry
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import EXCEPT, MOST_SEARCHED_IDS, number_in, numbers_of
from django_rmq_retry.statements import lock

log = logging.getLogger("django_rmq_retry")

AUDIT_BATCH = 2000
WHOLE_LOG = "audit log"
"""The subject of an action on the audit log itself."""
ERASED = "rows"
"""The fact of an erasure that names the rows of the audit log whose texts it emptied, as ranges of their numbers."""
READ_AT_ONCE = 500
"""Actions on several messages that one statement reads; each may name thousands of messages."""
MOST_RUNS = 200
"""The most requeue runs that a search by message or error group includes."""
LATEST_ACTS = 1000
"""The latest actions that are searched for those on an error group and others."""
LATEST_RUNS = 1000
"""The latest requeue runs that are searched for messages of an error group."""
MOST_ACTS = 200
"""The latest actions on a few messages, or on an error group and others, that are looked at."""
MOST_WORDS = 5
"""The most words of a search that may name a message each; further ones are searched in names and reasons only."""
MOST_SAID = 200_000
"""The latest actions whose operators and reasons a search reads: no index finds a part of a text."""
MOST_NAMES = 100
"""The most deleted messages with the same name that a search includes."""


def log_action(
    actor: Actor,
    action: Action,
    *,
    reason: str = "",
    message: int | None = None,
    messages: Collection[int] = (),
    group: int | None = None,
    groups: Mapping[int, int] | None = None,
    run: int | None = None,
    subject: str = "",
    count: int = 1,
    facts: Mapping[str, object] | None = None,
) -> OperatorAction:
    """Add an action to the audit log; call this in the transaction of the action itself.

    ``messages`` are the ids of several messages, or of the only one; ``groups`` are their error groups, each with how
    many of them.
    """
    if groups and len(groups) == 1:
        group, groups = next(iter(groups)), None
    if len(messages) == 1:
        message, messages = next(iter(messages)), ()
    several: dict[str, object] = {MESSAGES: spans(messages)} if messages else {}
    if groups:
        several[GROUPS] = {str(one): count for one, count in groups.items()}
    approval = {"approved_by": actor.approval.by, "request": actor.approval.request} if actor.approval else {}
    using = router.db_for_write(OperatorAction)
    with transaction.atomic(using=using):
        previous = _next_head(using)
        row = OperatorAction(
            number=previous.number,
            at=database_clock.now(using),
            actor_id=actor.user_id,
            actor_name=actor.name,
            actor_key="" if actor.user_id is None else str(actor.user_id),
            behalf=actor.behalf,
            action=action,
            reason=short_reason(reason),
            message=message,
            first_message=min(messages, default=None),
            last_message=max(messages, default=None),
            group=group,
            run=run,
            subject=short(subject, COLUMN_BYTES),
            count=count,
            facts={**(facts or {}), **several, **approval},
            ip=actor.ip,
            source=actor.source,
            previous=previous.seal,
        )
        row.close()
        row.save(using=using)
        AuditHead.objects.using(using).filter(pk=1).update(seal=row.seal)
        add_entry(row, using)
        transaction.on_commit(partial(_log, row), using=using, robust=True)
    return row


def _log(action: OperatorAction) -> None:
    names = ("action", "behalf", "reason", "group", "run", "subject", "count", "source")
    facts = {name: getattr(action, name) for name in names}
    # The name `message` is reserved by logging.
    extra = {"event": "rmq.operator", "who": action.actor_name, "record": action.message, **facts}
    what = action.subject or f"{action.count} messages"
    log.info("%s %s by %s", action.action, what, action.actor_name, extra=extra)


def spans(messages: Collection[int]) -> str:
    """Return ids as a short text, such as "7 812-1811": an action on a whole group takes a few bytes."""
    runs: list[list[int]] = []
    for number in sorted(messages):
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _holds(text: object, messages: Collection[int]) -> bool:
    """Return True if a text of ``spans`` contains one of these ids."""
    return any(first <= one <= last for first, last in _ranges(text) for one in messages)


def _ranges(text: object) -> Iterator[tuple[int, int]]:
    """Yield the first and the last id of each part of a text of ``spans``."""
    for span in text.split() if isinstance(text, str) else ():
        ends = [number_in(end) for end in span.split("-")]
        first, last = ends[0], ends[-1]
        if first is not None and last is not None:
            yield first, last


def named_by(action: OperatorAction) -> list[tuple[int, int]]:
    """Return the first and the last id of each part of the messages that an action names."""
    alone = [] if action.message is None else [(action.message, action.message)]
    return [*alone, *_ranges(action.details.get(MESSAGES))]


def acts_on(messages: Collection[int], *, runs: Collection[int] | None = None) -> Q:
    """Return the filter for all actions on these messages: alone, with others, or in a requeue run.

    It reads from the database which these are, also for deleted messages; ``runs`` are the requeue runs, if known.
    """
    if not messages:
        return Q(pk__in=())
    if runs is None:
        items = RequeueItem.objects.filter(message__in=messages).order_by().values_list("run").distinct()
        former = FormerName.objects.filter(message__in=messages, run__isnull=False).values_list("run")
        names = ParkedMessage.objects.filter(pk__in=messages).values("identity")
        early = EarlyRetry.objects.filter(identity__in=names).order_by().values_list("run").distinct()
        runs = [run for (run,) in items.union(former, early).order_by("-run")[:MOST_RUNS]]
    # What had been sent before a stop was not stopped.
    runs_of: Any = RequeueItem.objects.filter(message__in=messages).order_by().values("run")
    unsent = Count("pk", filter=Q(state__in=(*STILL_TO_SEND, ItemState.SKIPPED)))
    all_sent = runs_of.annotate(unsent=unsent).filter(unsent=0).values("run")
    # Of a run some messages were checked, which the action names.
    of_runs = Q(run__in=runs) & ~Q(action=Action.STOP, run__in=all_sent) & ~Q(action=Action.CHECK)
    return Q(message__in=messages) | of_runs | Q(number__in=list(_on_several(messages)))


def runs_with(group: int) -> dict[int, int]:
    """Return the latest requeue runs for which messages of an error group were chosen, each with how many."""
    newest = RequeueRun.objects.order_by("-pk")
    # As a text, because some databases cannot look into a list. Of each pair the group is the first.
    latest = RequeueRun.objects.filter(pk__gt=Subquery(newest.values(before=F("pk") - LATEST_RUNS)[:1]))
    told = latest.annotate(told=Cast("causes", TextField())).filter(told__contains=f"[{group}, ")
    runs = told.order_by("-pk").values_list("pk", "causes")[:MOST_RUNS]
    return {run: dict(causes)[group] for run, causes in runs}


def acts_in(group: int, runs: Collection[int] | None = None) -> Q:
    """Return the filter for the actions on an error group, alone or with others, and on the runs with its messages."""
    runs = runs_with(group) if runs is None else runs
    several = _latest(LATEST_ACTS).filter(**{"group": None, f"facts__{GROUPS}__has_key": str(group)})
    numbers = several.order_by("-number").values_list("number", flat=True)
    # Of a run some messages were checked, which the action names.
    of_runs = Q(run__in=list(runs)) & ~Q(action=Action.CHECK)
    return Q(group=group) | of_runs | Q(number__in=list(numbers[:MOST_ACTS]))


def _latest(most: int) -> "QuerySet[OperatorAction]":
    return OperatorAction.objects.filter(_among_latest(most))


def _among_latest(most: int) -> Q:
    # MariaDB refuses a negative result of a column that has none.
    before = Cast("number", BigIntegerField()) - most
    newest = OperatorAction.objects.order_by("-number").values(before=before)
    return Q(number__gt=Subquery(newest[:1]))


def newest_acts(
    messages: Collection[int], actions: Collection[str], *, since: datetime | None = None
) -> dict[int, list[OperatorAction]]:
    """Return the latest of these actions on each of a few messages, the newest first; actions on runs do not count."""
    acts = OperatorAction.objects.filter(acts_on(messages, runs=()), action__in=actions)
    later = acts if since is None else acts.filter(at__gte=since)
    found: dict[int, list[OperatorAction]] = {}
    for act in later.order_by("-number")[:MOST_ACTS] if messages else ():
        spans = named_by(act)
        for one in messages:
            if any(first <= one <= last for first, last in spans):
                found.setdefault(one, []).append(act)
    return found


def _on_several(messages: Collection[int]) -> Iterator[int]:
    """Yield the numbers of the actions on several messages that name one of these, newest first."""
    near = OperatorAction.objects.filter(last_message__gte=min(messages), first_message__lte=max(messages))
    rest = rows = near.order_by("-number").values_list("number", "facts")
    # One statement per slice: some databases return a whole result at once.
    while chunk := list(rest[:READ_AT_ONCE]):
        yield from (
            number for number, facts in chunk if isinstance(facts, dict) and _holds(facts.get(MESSAGES), messages)
        )
        if len(chunk) < READ_AT_ONCE:
            break
        rest = rows.filter(number__lt=chunk[-1][0])


def messages_named(text: str) -> list[int]:
    """Return the messages with this number, business key, message id or correlation id, also deleted ones.

    Case is ignored in business keys and the names of deleted messages. Message IDs have no index without case: they are
    found as typed, in upper case, in lower case, or with an initial capital.
    """
    deleted = FormerName.objects.filter(folded=folded(text), message__isnull=False)
    former: Any = deleted.order_by("-message").values_list("message", flat=True)
    keys: Any = BusinessKey.objects.filter(folded=folded(text)).order_by("-message").values_list("message", flat=True)
    ids = ParkedMessage.objects.filter(message_id__in=_spelled(text)).order_by("-pk").values_list("pk", flat=True)
    number = number_in(text.removeprefix("#"))
    near: set[int] = {*former.distinct()[:MOST_NAMES], *keys.distinct()[:MOST_SEARCHED_IDS], *ids[:MOST_SEARCHED_IDS]}
    return list({*numbers_of(text), *near, *([] if number is None else [number])})


def _spelled(*names: str) -> set[str]:
    """Return the spellings by which names are found where there is no index without case."""
    return {spelled for name in names for spelled in (name, name.upper(), name.lower(), name.capitalize())}


def leaving_out(names: Collection[str]) -> Q:
    """Return the filter for the latest actions that left out one of these keys; of an export that says nothing."""
    kept = ListedKey.objects.filter(list__kept=True, value__in=_spelled(*names))
    lists = list(kept.order_by("-list").values_list("list", flat=True).distinct()[:MOST_RUNS])
    if not lists:
        return Q(pk__in=())
    acts = _latest(MOST_SAID).filter(**{f"facts__selection__filter__{EXCEPT}__list__in": lists})
    numbers = acts.exclude(action=Action.EXPORT).order_by("-number").values_list("number", flat=True)
    return Q(number__in=list(numbers[:MOST_ACTS]))


def keys_left_out(actions: Iterable[OperatorAction], names: Collection[str]) -> dict[int, str]:
    """Return of these keys the one that each of the actions left out, by the action's number."""
    facts = {action.number: action.inside("selection", "filter", EXCEPT).get("list") for action in actions}
    lists = {number: listed for number, listed in facts.items() if isinstance(listed, int)}
    if not (lists and names):
        return {}
    keys = dict(
        ListedKey.objects.filter(list__in=lists.values(), value__in=_spelled(*names)).values_list("list", "value")
    )
    return {number: keys[listed] for number, listed in lists.items() if listed in keys}


def names_asked(text: str) -> set[str]:
    """Return what a search may name as a key: its text, its words, and the names of the messages whose #numbers it has.

    A message has its business keys and its id; they may have been deleted since.
    """
    asked = {name for name in (text, *_words(text)[:MOST_WORDS]) if name}
    numbers = {number for name in asked if name.startswith("#") and (number := number_in(name[1:])) is not None}
    return asked | (_names_of(numbers) if numbers else set())


def _names_of(messages: Collection[int]) -> set[str]:
    keys = BusinessKey.objects.filter(message__in=messages).order_by().values_list("value")
    ids = ParkedMessage.objects.filter(pk__in=messages).order_by().values_list("message_id")
    former = FormerName.objects.filter(message__in=messages).order_by().values_list("value")
    return {name for (name,) in keys.union(ids, former)[:MOST_NAMES] if name}


def acts_about(message: int) -> Q:
    """Return the filter for all actions on a message, and for those that left it out by one of its names."""
    return acts_on([message]) | leaving_out(_names_of([message]))


def actions_named(text: str) -> Q:
    """Return the filter for all actions on the messages with this name, also on those that have no record."""
    others = FormerName.objects.filter(folded=folded(text), action__isnull=False).order_by("-action")
    return acts_on(messages_named(text)) | Q(number__in=list(others.values_list("action", flat=True)[:MOST_NAMES]))


def acts_meant(text: str) -> Q:
    """Return the filter for all actions that a search means: by its whole text as a message, or by all of its words.

    A word is a part of an operator's name or of a reason, in any case, or a message; a name may be as a list shows it.
    """
    words = _words(text)
    latest = _among_latest(MOST_SAID)
    if len(words) <= 1:
        return _about(text) | (latest & _said(words))
    named = [_about(word) for word in words[:MOST_WORDS]] + [Q(pk__in=())] * len(words[MOST_WORDS:])
    each = (about | (latest & _said([word])) for about, word in zip(named, words, strict=True))
    return _about(text) | reduce(and_, each)


def acts_by(name: str) -> Q:
    """Return the filter for all actions of operators with this in their name, who asked or approved, in any case."""
    return Q(actor_name__icontains=name) | Q(behalf__icontains=name) | Q(facts__approved_by__icontains=name)


def _words(text: str) -> list[str]:
    # Of an approved act a list shows both names, and of a command in brackets the account; a long name is cut.
    for joint in both_names("\n", "\n").split("\n"):
        text = text.replace(joint, " ") if joint.strip() else text
    return [word for one in text.split() if (word := one.strip("(),…"))]


def _about(name: str) -> Q:
    """Return the filter for all actions on, or without, the messages with this name or #number; they may be deleted."""
    if name.startswith("#") and (number := number_in(name[1:])) is not None:
        return acts_about(number)
    # The subject is the message's name at that time.
    return Q(message__isnull=False, subject__in=_spelled(name)) | actions_named(name) | leaving_out([name])


def _said(words: Collection[str]) -> Q:
    """Return the filter for actions whose operator or reason, as a list shows them, has one of these words in it."""
    found = Q(pk__in=())
    for word in words:
        found |= acts_by(word) | Q(reason__icontains=word)
        for category in DiscardCategory:
            if word.casefold() in str(category.label).casefold():
                found |= Q(action=Action.DISCARD, reason__startswith=category.value)
    return found


def take_turns() -> None:
    """Let this transaction and others that act wait for each other, from here to its end.

    Lock the messages before: actions lock them before the audit log.
    """
    using = router.db_for_write(OperatorAction)
    AuditHead.objects.using(using).get_or_create(pk=1)
    lock(AuditHead.objects.using(using).filter(pk=1))


def audit_head() -> str:
    """Return the end of the audit log as ``number:seal``, to be kept where nobody can change it."""
    head = _head(router.db_for_read(OperatorAction))
    return f"{head.number}:{head.seal}" if head is not None else "0:"


def verify(kept: str = "") -> Iterator[str]:
    """Yield a sentence for each break in the audit log; nothing if the log is intact.

    Who can write to the tables can compute a whole new log. Only ``kept``, an earlier ``audit_head()``, detects that.
    """
    yield from _breaks()
    if kept:
        yield from _breaks_from(kept)


def _breaks_from(kept: str) -> Iterator[str]:
    """Yield a sentence if the row of an earlier head is not the row of today."""
    number, _, seal = kept.partition(":")
    if not int(number):
        # The log was empty.
        return
    rows = OperatorAction.objects.using(router.db_for_read(OperatorAction))
    now = rows.filter(number=int(number)).values_list("seal", flat=True).first()
    if now is None:
        # The row after a purged one still contains its seal.
        now = rows.filter(number=int(number) + 1).values_list("previous", flat=True).first()
    if now is None:
        purged = rows.filter(number__gt=int(number)).exists()
        missing = f"Row {number}, whose seal was kept, does not exist: the last rows are missing."
        yield f"Row {number} was purged, so its seal cannot be compared. Keep a later head." if purged else missing
    elif now != seal:
        yield f"The seal of row {number} differs from the one that was kept: the log was rewritten."


def _breaks() -> Iterator[str]:
    using = router.db_for_read(OperatorAction)
    # Read before the rows: an action that is logged meanwhile adds a row above this head, and no break.
    head = _head(using)
    known: OperatorAction | None = None
    begins, purged, end = 1, 0, (0, "")
    erased, erasures = list[int](), list[object]()
    for action in _in_order(using):
        yield from _breaks_between(known, action)
        begins = begins if known else action.number
        purged = max(purged, _purged_by(action))
        erased += [action.number] if action.erased else []
        erasures += [action.details.get(ERASED)] if action.action == Action.ERASE else []
        known = action
        if head is not None and action.number <= head.number:
            end = (action.number, action.seal)
    for number in erased:
        if not any(_holds(rows, [number]) for rows in erasures):
            yield f"The texts of row {number} were deleted, and no erasure in the log names it."
    if begins != purged + 1:
        yield f"The log begins at row {begins}, but was purged up to row {purged}: the rows between are missing."
    if known is not None and head is not None and known.number > head.number:
        now = _head(using)
        if now is None or known.number > now.number:
            # No action has written this row.
            end = (known.number, known.seal)
    if head is not None and (head.number, head.seal) != end:
        yield f"The log ends at row {end[0]}, but {head.number} rows were written: the last rows are missing."


def _head(using: str) -> AuditHead | None:
    return AuditHead.objects.using(using).filter(pk=1).first()


def _breaks_between(known: OperatorAction | None, action: OperatorAction) -> Iterator[str]:
    if known is not None and action.number != known.number + 1:
        yield f"The rows between {known.number} and {action.number} are missing."
    elif known is not None and action.previous != known.seal:
        yield f"Row {action.number} does not follow row {known.number}: one of them was changed or inserted later."
    if not action.intact:
        yield f"Row {action.number} was changed after it was written."
    if action.actor_id is not None and str(action.actor_id) != action.actor_key:
        yield f"Row {action.number} names another account than when it was written."


def _purged_by(action: OperatorAction) -> int:
    """Return the number up to which this action purged the audit log; 0 if it did not."""
    up_to = action.details.get("up_to") if action.action == Action.PURGE else None
    return up_to if isinstance(up_to, int) else 0


def _next_head(using: str) -> AuditHead:
    """Return the next number and the seal before it. The update comes first, so that concurrent actions wait for it."""
    heads = AuditHead.objects.using(using)
    if not heads.filter(pk=1).update(number=F("number") + 1):
        heads.get_or_create(pk=1)
        heads.filter(pk=1).update(number=F("number") + 1)
    return heads.only("number", "seal").get(pk=1)


def _in_order(using: str) -> Iterator[OperatorAction]:
    after, actions = 0, OperatorAction.objects.using(using).order_by("number")
    while rows := list(actions.filter(number__gt=after)[:AUDIT_BATCH]):
        yield from rows
        after = rows[-1].number
