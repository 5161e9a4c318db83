"""The end of doubts: those of runs for which no consumer died, and those that an operator says to have checked."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import router
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.health.begun import Begun, in_words
from django_rmq_retry.health.begun_in_runs import begun_among
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.handled_again import TWICE_REPORTED_FOR, HandledAgain
from django_rmq_retry.health.held import KNOWN_AFTER, NOTHING_HELD, HeldUnsettled
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.processes import KEPT_EMPTY, note_ended
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.models import (
    Action,
    AttemptName,
    ConsumerProcess,
    FormerName,
    OperatorAction,
    ParkedMessage,
    RequeueRun,
)
from django_rmq_retry.models.audit import PROCESSES
from django_rmq_retry.parked.audit import log_action, take_turns
from django_rmq_retry.parked.checked import checked, mark_of_run, remember
from django_rmq_retry.parked.database import locked_run, records_alias, transaction_of
from django_rmq_retry.parked.early_outcomes import HANDLED_TWICE, PERHAPS_TWICE
from django_rmq_retry.parked.operators import Actor, Outdated, Refused
from django_rmq_retry.statements import with_one_of
from django_rmq_retry.wording import MOST_IN_A_TEXT

OF_RUNS = (Code.HANDLED_TWICE, Code.RUN_PERHAPS_TWICE)
"""The doubts of which each requeue run has a finding of its own."""
LOOPS = (Code.CRASH_LOOP, Code.CRASH_LOOP_OVER)
"""Those of which the queues of each crash loop have one."""
OF_PROCESSES = (Code.VANISHED_IN_HAND, *LOOPS)
CHECKABLE = (Code.VANISHED_IN_HAND, Code.DONE_TWICE, Code.PERHAPS_TWICE, Code.HANDLED_ANYWAY, *OF_RUNS, *LOOPS)
"""The findings that an operator ends by saying that they were checked."""
FINDING, NAMES = "finding", "names"
"""The facts of such an action: its code, and the names of the messages."""
MOST_CHECKS_SHOWN = 20
GONE = gettext_lazy("Nothing was changed: this finding has ended, is another one now, or somebody has checked it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubted:
    """One message, or one process, that an operator says to have checked."""

    mark: str
    """The digest of its doubt; that of a run is the one of all its messages."""
    name: str
    """A message's first business key, else its id; it may have neither."""
    code: Code
    at: datetime | None
    """When it was handled last, or when the process was heard of last."""
    identity: str = ""
    message_id: str = ""
    record: ParkedMessage | None = None
    handled: int = 0
    """How often a message was handled, as far as it is known."""
    begun: Sequence[Begun] = ()
    """The other consumers that had begun a message, and did not end it, as far as it is known."""

    @property
    def word(self) -> str:
        """What is in doubt."""
        return str(self.code.value.word)

    @property
    def before(self) -> str:
        """Who had begun it, and when; of what was perhaps handled twice also that maybe nobody had."""
        if self.begun or self.code not in (Code.PERHAPS_TWICE, Code.RUN_PERHAPS_TWICE):
            return in_words(self.begun)
        return _("The first consumer may not have begun it.")

    @property
    def names(self) -> set[str]:
        """By what an operator calls it."""
        known = self.record
        more = {str(known.pk), known.message_id} if known else set()
        return {self.name, self.message_id, *more} - {""}


def doubts_of(code: str) -> dict[str, Problem]:
    """Return the findings with this code that can be checked, each by its run, or by the queues of its crash loop.

    Whoever asks may have seen it before it got worse or better.
    """
    asked = Code.__members__.get(code)
    same = [one for one in CHECKABLE if asked and one.known_as == asked.known_as]
    found = [one for one in in_survey(survey(page=True), Limits()) if one.doubts and one.code in same]
    found.sort(key=lambda one: one.code.name == code)
    return {one.subject if one.code in (*OF_RUNS, *LOOPS) else "": one for one in found}


def doubted(found: Problem) -> list[Doubted]:
    """Return all that a finding is about, worst first; of a run both what was handled twice and what perhaps was."""
    rows = ParkedMessage.objects.using(records_alias()).defer("body", "properties")
    if found.code is Code.HANDLED_ANYWAY:
        known = {row.pk: row for some in with_one_of(rows, "pk", list(found.doubts.values())) for row in some}
        here = [(digest, known[pk]) for digest, pk in found.doubts.items() if pk in known]
        return [
            Doubted(mark=digest, name=str(row), code=found.code, at=row.succeeded_at, record=row)
            for digest, row in here
        ]
    each = [one for digest, what in found.doubts.items() for one in _each(digest, what, found.code)]
    identities = {one.identity for one in each if one.identity}
    recorded = {row.identity: row for some in with_one_of(rows, "identity", identities) for row in some}
    begun = {
        identity: some
        for run in found.doubts.values()
        if isinstance(run, RequeueRun)
        for identity, some in begun_among(run, HANDLED_TWICE | PERHAPS_TWICE).items()
    }
    told = [
        replace(one, record=record, begun=one.begun or begun.get(record.identity if record else one.identity, ()))
        for one in each
        for record in [one.record or recorded.get(one.identity)]
    ]
    return sorted(told, key=lambda one: (-one.handled, not one.begun))


def _each(digest: str, what: object, code: Code) -> Iterator[Doubted]:
    if isinstance(what, HandledAgain):
        again = Code.DONE_TWICE if what.certain else Code.PERHAPS_TWICE
        yield Doubted(
            mark=digest,
            name=what.name,
            code=again,
            at=what.at,
            identity=what.identity,
            message_id=what.message_id,
            handled=len(what.times),
            begun=(*what.begun_by, *what.still),
        )
    elif isinstance(what, tuple):
        for row in what:
            yield Doubted(mark=digest, name=str(row), code=code, at=row.beat_at)
    elif isinstance(what, ConsumerProcess):
        yield Doubted(mark=digest, name=str(what), code=code, at=what.beat_at)
    elif isinstance(what, RequeueRun):
        parts = what.parts.using(records_alias()).filter(HANDLED_TWICE | PERHAPS_TWICE).order_by("-handled", "pk")
        if not what.retries_of:
            parts = parts.select_related("message").defer("message__body", "message__properties")
        for part in parts:
            record = None if what.retries_of else part.message
            yield Doubted(
                mark=digest,
                name=str(record or part.shown),
                code=Code.HANDLED_TWICE if part.handled > 1 else Code.RUN_PERHAPS_TWICE,
                at=part.ended_at,
                handled=part.handled,
                identity=part.identity if what.retries_of else "",
                record=record,
            )


def part_of(found: Problem, marks: Collection[str]) -> Problem:
    """Return a finding with only those of its doubts that have one of these marks."""
    return replace(found, doubts={digest: what for digest, what in found.doubts.items() if digest in marks})


@transaction_of(OperatorAction)
def check(found: Problem, actor: Actor, *, reason: str) -> None:
    """Record that an operator has checked a finding, as it was shown: it ends until something new of its kind comes.

    What is left out of it by ``part_of`` stays a finding. Raise Outdated if nothing is left of it.
    """
    if not found.doubts:
        raise Refused(_("Tick what you have checked."))
    if not reason.strip():
        raise Refused(_("Enter a reason: it is kept in the audit log."))
    take_turns()
    if found.code is Code.VANISHED_IN_HAND:
        left = note_ended(found.doubts, actor.name)
    else:
        left = len(found.doubts.keys() - checked(using=router.db_for_write(OperatorAction)).keys())
    if not left:
        raise Outdated(str(GONE))
    each, kind = doubted(found), PROCESSES if found.code in OF_PROCESSES else NAMES
    unrecorded = [one for one in each if one.record is None]
    names = [one.name for one in each if one.name]
    act = log_action(
        actor,
        Action.CHECK,
        reason=reason,
        messages={one.record.pk for one in each if one.record},
        run=int(found.subject) if found.code in OF_RUNS else None,
        subject=", ".join([*names[:MOST_IN_A_TEXT], "…"] if len(names) > MOST_IN_A_TEXT else names),
        count=max(len(each), found.count) if found.code in OF_RUNS else len(each),
        facts={FINDING: found.code.name, kind: names},
    )
    remember(found.doubts, act.number)
    _keep_names(unrecorded, act)


def _keep_names(messages: Iterable[Doubted], act: OperatorAction) -> None:
    """Store the names of messages without a record, by which a search finds the action."""
    named = {one.identity: {one.name} for one in messages if one.identity}
    for some in with_one_of(AttemptName.objects.using(records_alias()), "identity", named):
        for identity, value in some.values_list("identity", "value"):
            named[identity].add(value)
    names = sorted({name for of_one in named.values() for name in of_one if name})
    rows = [FormerName(value=name, action=act.number, deleted_at=act.at) for name in names]
    FormerName.objects.using(records_alias()).bulk_create(rows, batch_size=500)


def finding_of(action: OperatorAction) -> str:
    """Return in a few words what an operator says to have checked; empty for another action."""
    words = {one.name: one.value.word for one in CHECKABLE} if action.action == Action.CHECK else {}
    return str(words.get(str(action.details.get(FINDING)), ""))


def checks_of_runs(runs: Iterable[RequeueRun]) -> dict[int, OperatorAction]:
    """Return the actions that say of all that these runs have handled twice, or perhaps, that it was checked."""
    marks = {run.pk: mark_of_run(run) for run in runs if run.handled_twice or run.perhaps_twice}
    acts = acts_of(marks.values(), checked()) if marks else {}
    return {pk: acts[one] for pk, one in marks.items() if one in acts}


def acts_of(marks: Iterable[str], checks: Mapping[str, int]) -> dict[str, OperatorAction]:
    """Return the actions that say of doubts that they were checked, by their digests; the audit log may be purged."""
    numbers = {mark: checks[mark] for mark in marks if mark in checks}
    rows = with_one_of(OperatorAction.objects.all(), "number", set(numbers.values()))
    acts = {act.number: act for some in rows for act in some}
    return {mark: acts[number] for mark, number in numbers.items() if number in acts}


def checked_lately(checks: Mapping[str, int], now: datetime) -> list[OperatorAction]:
    """Return the latest of these actions, the newest first; none of what is not reported any more."""
    numbers = sorted(set(checks.values()))[-MOST_CHECKS_SHOWN:]
    since = now - TWICE_REPORTED_FOR
    acts = OperatorAction.objects.filter(number__in=numbers, at__gt=since).order_by("-number")
    return list(acts) if numbers else []


def end_doubts() -> bool:
    """Take back "perhaps handled twice" of what was processed while no consumer was lost that may have begun it before.

    Consumers that lost their connection, and live, had only fetched these messages: what they have handled they count
    themselves, whether or not its ack has arrived; one that has it in a handler yet is waited for. What its deaths
    have parked stays in doubt, as does what was sent when the rows of those that died then may be gone.
    """
    now = database_clock.trusted(records_alias())
    if now is not None:
        runs = RequeueRun.objects.using(records_alias()).filter(perhaps_twice__gt=0)
        known = list(runs.filter(Q(finished_at=None) | Q(finished_at__gte=now - KEPT_EMPTY)))
        held = HeldUnsettled.at(now) if known else NOTHING_HELD
        # Without a row nothing is known of the processes that there were.
        for run in known if held.known else ():
            _end(run.pk, held, now)
    return False


@transaction_of(RequeueRun)
def _end(run_id: int, held: HeldUnsettled, now: datetime) -> None:
    run = locked_run(run_id)
    if run is not None:
        held.unfounded(run, now).filter(ended_at__lt=now - KNOWN_AFTER).update(redelivered=False)
        before, left = mark_of_run(run), run.parts.using(records_alias()).filter(PERHAPS_TWICE).count()
        if left == run.perhaps_twice:
            return
        run.perhaps_twice = left
        run.save(using=records_alias(), update_fields=["perhaps_twice"])
        take_turns()
        if act := checked(using=records_alias()).get(before):
            # What was checked stays so when there is less of it.
            remember([mark_of_run(run)], act)
