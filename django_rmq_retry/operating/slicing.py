"""Acts on many messages: a slice at a time is locked, changed and written into the audit log, in one transaction."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction
from django.db.models import F

from django_rmq_retry.models import ParkedMessage, Verb
from django_rmq_retry.models.messages import RESOLVED
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.locking import database, locked_messages, steadily
from django_rmq_retry.operating.selecting import Selection
from django_rmq_retry.ordering.releasing import resolved
from django_rmq_retry.records.counting import moved

SLICE = 1000

Allowed = Callable[[ParkedMessage], str]
"""Nothing, or why this one must not be touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How many messages an act has changed, and how many it left because they are not as they were."""

    changed: int = 0
    left: int = 0
    refused: int = 0
    """Of those the project's rules forbid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What becomes of each message that is in one of these states."""

    verb: Verb
    states: Sequence[str]
    state: str
    changes: Mapping[str, Any]
    reason: str
    facts: Mapping[str, object]


def perform(act: Act, selection: Selection, actor: Actor, *, allowed: Allowed | None = None) -> Done:
    """Change what is chosen; an act on more than a slice leaves a line in the audit log for each slice."""
    selection.check(selection.queryset().count())
    done = Done()
    for ids in _slices(selection):
        part = steadily(lambda ids=ids: _slice(act, selection, actor, ids, allowed))  # type: ignore[misc]  # mypy does not infer its default
        done = replace(
            done,
            changed=done.changed + part.changed,
            left=done.left + part.left,
            refused=done.refused + part.refused,
        )
    return done


def _slices(selection: Selection) -> Iterator[list[int]]:
    after = 0
    rows = selection.queryset().order_by("pk").values_list("pk", flat=True)
    while ids := list(rows.filter(pk__gt=after)[:SLICE]):
        yield ids
        after = ids[-1]


def _slice(act: Act, selection: Selection, actor: Actor, ids: Sequence[int], allowed: Allowed | None) -> Done:
    using = database()
    with transaction.atomic(using=using):
        rows = locked_messages(ids, whole=False)
        fresh = [row for row in rows.values() if row.state in act.states and _unchanged(row, selection)]
        meant = [row for row in fresh if allowed is None or not allowed(row)]
        changed = ParkedMessage.objects.using(using).filter(pk__in=[row.pk for row in meant])
        changed.update(state=act.state, revision=F("revision") + 1, **act.changes)
        groups = Counter((row.group_id, row.state) for row in meant)
        for (group, state), count in sorted(groups.items()):
            moved(group, state, act.state, count)
        if meant:
            _note(act, selection, actor, meant)
        if meant and act.state in RESOLVED:
            # What waits behind them goes on; where that fails, a consumer sees to it a little later.
            ended = [row.pk for row in meant]
            transaction.on_commit(lambda: resolved(ended), using=using, robust=True)
    return Done(changed=len(meant), left=len(ids) - len(fresh), refused=len(fresh) - len(meant))


def _unchanged(row: ParkedMessage, selection: Selection) -> bool:
    return row.revision == selection.revisions.get(row.pk, row.revision)


def _note(act: Act, selection: Selection, actor: Actor, rows: Sequence[ParkedMessage]) -> None:
    alone = rows[0] if len(rows) == 1 else None
    groups = {row.group_id for row in rows}
    facts = {**act.facts, "selection": selection.facts()}
    note(
        actor,
        act.verb,
        reason=act.reason,
        message=alone.pk if alone else None,
        group=groups.pop() if len(groups) == 1 else None,
        subject=str(alone) if alone else selection.said,
        count=len(rows),
        facts=facts,
    )
