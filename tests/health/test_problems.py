"""The rules of health as one table: these facts are these problems, and no others."""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from django.utils.translation import override

from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.errors import BrokerUnreachable
from django_rmq_retry.health import facts, problems
from django_rmq_retry.health.condition import Condition
from django_rmq_retry.health.facts import (
    BlockedCounts,
    HandledAnyway,
    LargestCause,
    OverdueRetries,
    ParkedCounts,
    SilentCopies,
    Survey,
    survey,
)
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.problems import (
    Limits,
    Queues,
    excused,
    in_groups,
    in_plan,
    in_processes,
    in_runs,
    in_survey,
    last_signs,
    too_many_parked,
    unreachable,
)
from django_rmq_retry.health.processes import GivenAgain, dead_processes, unreplaced
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.models import (
    ConsumerProcess,
    ErrorGroup,
    OutboxMessage,
    ParkedMessage,
    QueueControl,
    RequeueRun,
    RunState,
    RunWait,
)
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.parked.groups import Lately
from django_rmq_retry.parked.items import LeftBehind
from django_rmq_retry.topology import QueueDeclaration, Role
from django_rmq_retry.topology.declarations import ExchangeDeclaration, Server
from django_rmq_retry.topology.plan import Difference, Item, Plan, PlanState
from django_rmq_retry.wording import minute
from tests.admin import made

NOW = timezone.now()
BEGAN = NOW - timedelta(minutes=3)
SINCE = minute(BEGAN)
STRICT = Limits(min_consumers=2, max_ready=10)


def ago(**span: float) -> Any:
    return NOW - timedelta(**span)


def level(name: str = "q", role: Role = Role.WORK, *, ready: int = 0, consumers: int = 0, **facts: Any) -> Level:
    return Level(queue=name, role=role, ready=ready, consumers=consumers, **facts)


def needs(survey: Survey, levels: Iterable[Level], **facts: Any) -> tuple[Problem, ...]:
    return Health(survey=survey, gauged=Gauged(levels=tuple(levels), api_set=True), **facts).needs


def codes(problems: Iterable[Problem]) -> list[str]:
    return [problem.code.name for problem in problems]


LEVELS: list[tuple[list[Level], list[str]]] = [
    ([level(ready=1)], ["q NO_CONSUMER", "q FEW_CONSUMERS"]),
    ([level(consumers=1)], ["q FEW_CONSUMERS"]),
    ([level(consumers=2, ready=10)], []),
    ([level(consumers=2, ready=11)], ["q BACKLOG"]),
    ([level()], ["q FEW_CONSUMERS", "q IDLE"]),
    ([level(ready=1, unacked=1)], ["q NO_CONSUMER", "q FEW_CONSUMERS", "q HELD"]),
    ([level("excused", ready=1)], []),
    ([level("excused")], []),
    ([level(consumers=2, ready=5, arguments={"x-max-length": 5})], ["q FULL"]),
    ([level(consumers=2, ready=4, arguments={"x-max-length": 5})], []),
    ([level(consumers=2, dead_letters=1)], ["q DEAD_LETTERS"]),
    ([level(consumers=2, moving=0)], ["q INTERRUPTED"]),
    ([Level(queue="q", role=Role.WORK, missing=True, moving=3)], ["q MISSING", "q INTERRUPTED"]),
    ([Level(queue="q", role=Role.WORK, missing=True, existing=True)], ["q EXTERNAL_MISSING"]),
    ([Level(queue="q", role=Role.WORK, refusal="403")], ["q UNREADABLE"]),
    ([Level(queue="q", role=Role.WORK)], []),
    ([level(role=Role.REPLY, ready=1)], ["q NO_CONSUMER"]),
    ([level(role=Role.REPLY)], []),
    ([level(role=Role.WAITING, ready=1)], []),
    ([level(role=Role.WAITING, consumers=1)], ["q TOO_EARLY"]),
    ([level(role=Role.OTHER, ready=1)], ["q UNREAD"]),
    ([level(role=Role.OTHER, ready=1, consumers=1)], []),
    ([level(role=Role.OTHER, ready=1, arguments={"x-message-ttl": 5})], []),
    ([level(role=Role.PARKED, ready=1)], ["q NOT_RECORDED"]),
    ([level(role=Role.PARKED, ready=1, consumers=1)], []),
    ([level(consumers=2), level("q.quarantine", Role.QUARANTINE, ready=1)], []),
    ([level("q.quarantine", Role.QUARANTINE, ready=1)], ["q.quarantine NO_CONSUMER"]),
    ([level("q.quarantine", Role.QUARANTINE, ready=1, consumers=1)], []),
    ([level("excused"), level("excused.quarantine", Role.QUARANTINE, ready=1)], []),
    ([level("old", abandoned=True)], ["old EMPTY"]),
    ([level("old", abandoned=True, ready=1)], ["old ABANDONED"]),
    ([level("old", abandoned=True, ready=1, consumers=1)], ["old HANDED_OVER"]),
    (
        [level("old", abandoned=True, consumers=1), level("w", Role.WAITING, abandoned=True, home="old", ready=1)],
        ["old HANDED_OVER", "w RETURNING"],
    ),
    (
        [level("old", abandoned=True, ready=1), level("w", Role.WAITING, abandoned=True, home="old", ready=1)],
        ["old ABANDONED", "w ABANDONED"],
    ),
]


@pytest.mark.parametrize(("levels", "expected"), LEVELS)
def test_queues(levels: list[Level], expected: list[str]) -> None:
    judged = Queues(levels=levels, excused={"excused"}, limits=STRICT).judged()

    assert [f"{one.level.queue} {problem.code.name}" for one in judged for problem in one.problems] == expected


def test_without_the_database_a_queue_without_consumers_may_be_paused_or_its_breaker_open() -> None:
    """It said "Start manage.py rmq_consume kyc.check" of a queue that a breaker had paused."""
    levels = (
        level("kyc.check", ready=3),
        level("kyc.check.quarantine", Role.QUARANTINE, ready=1),
        level("pay", consumers=2),
    )
    known = Health(survey=None, trouble="no answer", gauged=Gauged(levels=levels, api_set=True))

    assert codes(known.needs) == ["DATABASE_UNUSABLE", "PERHAPS_STOPPED"]
    assert known.needs[1].text == "Queue 'kyc.check' has no consumer."
    assert known.needs[1].why.startswith("It may be paused, or its breaker open")
    alone = replace(known, gauged=Gauged(levels=(level("kyc.check", ready=3), level("pay")), api_set=True))
    assert codes(alone.needs) == ["DATABASE_UNUSABLE", "ALL_UNREAD"], "no consumer reads any queue"


@pytest.mark.parametrize(
    ("home", "consumers", "command"),
    [
        ("", 0, "manage.py rmq_declare --recreate old.parked --move-to NEW"),
        ("old", 0, "manage.py rmq_declare --recreate old --move-to NEW"),
        ("old", 1, "manage.py rmq_declare --recreate old.parked --move-to NEW"),
    ],
)
def test_an_abandoned_queue_is_moved_with_its_work_queue_unless_others_consume_that(
    home: str, consumers: int, command: str
) -> None:
    work = level("old", abandoned=True, consumers=consumers)
    parked = level("old.parked", Role.PARKED, abandoned=True, home=home, ready=1)
    [_, judged] = Queues(levels=[work, parked]).judged()

    assert [problem.fix for problem in judged.problems] == [command]


def test_an_empty_abandoned_queue_is_not_deleted_while_parked_messages_belong_to_it() -> None:
    """The commands advised to delete the queue to which ten parked payments would return."""
    levels = (level("old", abandoned=True), level("old.parked", Role.PARKED, abandoned=True, home="old"))
    health = Health(survey=surveyed(parked_in={"old": 10}), gauged=Gauged(levels=levels, api_set=True))

    said = "abandoned, empty; 10 parked messages belong to old: first edit, move or discard them"
    assert [one.row for judged in health.judged for one in judged.problems] == [said] * 2


def test_an_empty_abandoned_queue_is_not_deleted_while_a_queue_beside_it_has_messages() -> None:
    """A row said "abandoned, empty: manage.py rmq_delete payments.legacy" beside 5 messages of that queue."""
    waits = level("old.retry.1s", Role.WAITING, abandoned=True, home="old")

    def row(ready: int = 0, consumers: int = 0) -> str:
        work = level("old", ready=ready, consumers=consumers, abandoned=True)
        [_, judged] = Queues(levels=[work, waits]).judged()
        return judged.remark

    assert row(ready=5) == (
        "abandoned, empty; first move the 5 messages of old: manage.py rmq_declare --recreate old --move-to NEW"
    )
    assert row(consumers=1) == "abandoned, empty; others still read queue old"
    assert row() == "abandoned, empty: manage.py rmq_delete old"


@pytest.mark.parametrize(
    ("fields", "is_excused"),
    [
        ({"paused": True}, True),
        ({"paused": True, "until": ago(minutes=-1)}, True),
        ({"paused": True, "until": ago(minutes=1)}, False),
        ({"opened": True, "probe_at": ago(seconds=30)}, True),
        ({"opened": True, "probe_at": ago(seconds=90)}, False),
        ({"opened": True, "probe_at": ago(seconds=90), "prober": "h", "probe_until": ago(seconds=30)}, True),
        ({"opened": True, "probe_at": ago(minutes=9), "prober": "h", "probe_until": ago(seconds=90)}, False),
        ({"opened": True, "probe_at": ago(seconds=90), "paused": True}, True),
    ],
)
def test_only_pauses_and_breakers_that_are_probed_in_time_excuse_missing_consumers(
    fields: dict[str, Any], is_excused: bool
) -> None:
    state = state_of(QueueControl(queue="q", opened_at=NOW, since=NOW, **fields))

    assert excused([state], NOW.timestamp()) == ({"q"} if is_excused else frozenset())


@pytest.mark.parametrize(
    ("looked_at", "fields", "stops", "told"),
    [
        (None, {}, {}, True),  # Killed a moment ago: the broker knows it first.
        (ago(seconds=20), {}, {}, False),
        (ago(seconds=1), {}, {}, True),
        (ago(seconds=20), {"connected": False}, {}, True),
        (ago(seconds=20), {"stopping": True}, {}, True),
        (ago(seconds=20), {"queues": ["r"]}, {}, True),
        (ago(seconds=20), {"beat_at": ago(seconds=9)}, {}, True),
        (None, {"let_go": {"q": []}}, {}, False),  # It was paused a moment ago.
        (None, {"let_go": {"r": []}}, {}, True),
        (None, {"let_go": {"q": []}}, {"opened": True, "probe_at": ago(seconds=90)}, True),
    ],
)
def test_a_queue_that_is_read_by_newer_facts_than_the_brokers_is_not_missed(
    looked_at: Any, fields: dict[str, Any], stops: dict[str, Any], told: bool
) -> None:
    row = process(1, 4, **{"queues": ["q"], **fields})
    stopped = (QueueControl(queue="q", opened_at=NOW, **stops),) if stops else ()
    found = needs(surveyed(processes=(row,), stopped=stopped), [level(ready=1)], looked_at=looked_at)
    missed = (Code.NO_CONSUMER, Code.ALL_UNREAD, Code.ALL_DISCONNECTED)

    assert any(one.code in missed for one in found) is told


def surveyed(**facts: Any) -> Survey:
    nothing = {"parked": ParkedCounts(), "outbox": PendingRows(), "blocked": BlockedCounts()}
    dead = dead_processes(facts.get("processes", ()), NOW)
    return Survey(alias="default", at=NOW, seconds=0.001, dead=dead, **{**nothing, **facts})


def stopped(**fields: Any) -> dict[str, Any]:
    return {"stopped": (QueueControl(queue="a b", **fields),)}


def test_a_pause_says_until_when() -> None:
    [held] = needs(surveyed(**stopped(paused=True, since=ago(hours=5), until=ago(hours=-1))), [])
    [open_ended] = needs(surveyed(**stopped(paused=True, since=NOW)), [])

    assert held.why.startswith("Its messages wait. It resumes automatically at ")
    assert held.why.endswith(". A pause of more than 4 h may be forgotten.")
    assert open_ended.why == "Its messages wait until it is resumed."


def test_a_queue_whose_message_may_have_been_done_is_resumed_once_that_is_known() -> None:
    """ "Find that out before the queue resumes." was followed by the command that resumes it."""
    begun = {"a b": GivenAgain(begun=(), perhaps=(), waiting=("PAY-1",))}
    [plain] = needs(surveyed(**stopped(paused=True, since=NOW)), [])
    [one] = needs(surveyed(given_again=begun, **stopped(paused=True, since=NOW)), [])

    assert one.why.endswith("may have been done: PAY-1. Find that out before the queue resumes.")
    assert one.fix == "once you know that, manage.py rmq_queue resume 'a b'"
    assert plain.fix == "manage.py rmq_queue resume 'a b'"


def halted(at: Any) -> dict[str, Any]:
    facts = {"halted_seen_at": NOW, "halted_attempt": 7, "halted_error": "NotCovered."}
    return {"halted": (QueueControl(queue="q", halted_at=at, **facts),)}


GATEWAY = LargestCause(
    title="GatewayTimeout",
    count=4000,
    places={"transfer": 2000, "card": 2000},
    only=None,
    permanent=False,
    newest=9,
    newest_since=BEGAN,
    again_at=None,
    last_new=ago(seconds=50),
    last_seen=ago(seconds=50),
    others=11,
)


SURVEYS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"apart": timedelta(seconds=2)}, []),
    ({"apart": timedelta(seconds=3)}, ["CLOCKS_APART The clock of this host is 3 s behind the clock of database"]),
    ({"apart": timedelta(minutes=-6)}, ["CLOCKS_WRONG The clock of this host is 6 min ahead of the clock of"]),
    ({"outbox": PendingRows(failed=2)}, ["OUTBOX_FAILED 2 messages in the outbox failed."]),
    ({"outbox": PendingRows(waiting=1, oldest=ago(minutes=4))}, []),
    (
        {"outbox": PendingRows(waiting=1, oldest=ago(minutes=11))},
        ["OUTBOX_OVERDUE 1 message in the outbox not sent, "],
    ),
    ({"parked": ParkedCounts(count=1, oldest=ago(hours=3))}, ["PARKED 1 message parked."]),
    (
        {"parked": ParkedCounts(count=4712, oldest=ago(hours=3)), "cause": GATEWAY},
        [
            "PARKED_MANY 4,712 messages parked: 4,000 GatewayTimeout, growing; 712 others.",
        ],
    ),
    (
        {
            "parked": ParkedCounts(count=4712, oldest=ago(hours=3)),
            "cause": replace(GATEWAY, last_new=ago(minutes=2), last_seen=ago(minutes=2)),
        },
        [f"PARKED_MANY 4,712 messages parked: 4,000 GatewayTimeout, +9 new since {SINCE}, none for 2"],
    ),
    (
        {
            "parked": ParkedCounts(count=4712, oldest=ago(hours=3)),
            "cause": replace(GATEWAY, last_new=ago(minutes=7), last_seen=ago(minutes=4)),
        },
        # One of them was requeued, failed again 4 minutes ago, and was discarded since.
        ["PARKED_MANY 4,712 messages parked: 4,000 GatewayTimeout, no failure for 4"],
    ),
    ({"parked": ParkedCounts(count=99, oldest=ago(hours=3))}, ["PARKED 99 messages parked."]),
    ({"parked": ParkedCounts(count=100, oldest=NOW)}, ["PARKED_MANY 100 messages parked."]),
    ({"parked": ParkedCounts(count=2, oldest=ago(hours=30))}, ["PARKED_LONG 2 messages parked."]),
    (stopped(opened=True), ["BREAKER_OPEN The breaker of queue 'a b' has been open for 0 s."]),
    (
        stopped(opened=True, cause="BankDown: timeout.", opened_at=ago(minutes=3)),
        ["BREAKER_OPEN The breaker of queue 'a b' has been open for 3 min: BankDown: timeout."],
    ),
    (stopped(paused=True, since=ago(hours=3)), ["PAUSED Queue 'a b' has been paused for 3 h."]),
    (
        stopped(paused=True, since=ago(days=3), by="ann", reason="closed."),
        ["PAUSED_LONG Queue 'a b' has been paused for 3 d by ann: closed."],
    ),
    (halted(ago(minutes=5)), ["HALTED Queue 'q' has been halted for 5 min, attempt 7: NotCovered."]),
    (halted(ago(minutes=11)), ["HALTED_LONG Queue 'q' has been halted for 11 min, attempt 7: NotCovered."]),
    (
        {"anyway": HandledAnyway(count=1, last=17, at=ago(minutes=3))},
        ["HANDLED_ANYWAY Message #17 was handled after an operator had discarded it."],
    ),
    (
        {"anyway": HandledAnyway(count=2, last=17, at=ago(minutes=3))},
        ["HANDLED_ANYWAY 2 messages were handled after an operator had discarded them, #17 last."],
    ),
    ({"silent": SilentCopies(count=1, oldest=ago(hours=2))}, ["NO_OUTCOME 1 message was requeued 2 h ago and has no"]),
    (
        {"silent": SilentCopies(count=1001, oldest=ago(hours=2))},
        ["NO_OUTCOME 1,000+ messages were requeued and have no outcome, the first for 2 h."],
    ),
    ({"blocked": BlockedCounts(most=799)}, []),
    (
        {"blocked": BlockedCounts(most=800)},
        ["BLOCKED_NEAR 800 messages behind one key; the limit is 1,000."],
    ),
    (
        {"blocked": BlockedCounts(most=1000)},
        ["BLOCKED_FULL 1,000 messages behind one key; the limit is 1,000."],
    ),
    (
        {"blocked": BlockedCounts(messages=100_000)},
        ["BLOCKED_FULL 100,000 messages behind blocked keys; the limit is 100,000."],
    ),
]


@pytest.mark.parametrize(("facts", "expected"), SURVEYS)
def test_the_survey(facts: dict[str, Any], expected: list[str]) -> None:
    found = [f"{one.code.name} {one.text}" for one in in_survey(surveyed(**facts), Limits())]

    assert [text.startswith(begin) for text, begin in zip(found, expected, strict=True)] == [True] * len(expected)


PROBES: list[tuple[dict[str, Any], list[Level], str]] = [
    ({"probe_at": ago(minutes=-1)}, [level("a b", ready=6, consumers=1)], " 6 messages wait. Next probe at "),
    ({"probe_at": ago(minutes=-1)}, [level("a b", consumers=1)], " Next probe at "),
    ({"probe_at": ago(seconds=-1), "alive": False}, [], " Nobody probes it: no consumer of this queue is alive."),
    ({"probe_at": ago(seconds=20)}, [], " The next probe has been due since "),
    ({"probe_at": ago(seconds=20), "prober": "h", "probe_until": ago(seconds=-9)}, [], " A probe is in flight now."),
]


@pytest.mark.parametrize(("fields", "levels", "said"), PROBES)
def test_an_open_breaker_says_what_waits_and_when_or_that_nobody_probes_it(
    fields: dict[str, Any], levels: list[Level], said: str
) -> None:
    alive = fields.pop("alive", True)
    rows = (process(1, 2 if alive else 64, queues=["a b"]), process(2, queues=["other"]))
    known = surveyed(processes=rows, **stopped(opened=True, opened_at=ago(minutes=3), **fields))
    [breaker] = [one for one in needs(known, levels) if one.code is Code.BREAKER_OPEN]

    assert breaker.why.startswith(f"A service that the handler needs is down, so the queue is paused.{said}")


def test_the_finding_of_parked_messages_is_short_and_the_rest_stands_below_it() -> None:
    """Its first line was five lines of bold text on Live status."""
    run = RequeueRun(pk=8, by="ann", state=RunState.RUNNING, created_at=NOW, total=300)
    known = surveyed(
        parked=ParkedCounts(count=4712, oldest=ago(hours=3)),
        cause=GATEWAY,
        runs=(run,),
        to_send=300,
        blocked=BlockedCounts(messages=7),
    )
    [found] = [one for one in needs(known, []) if one.code is Code.PARKED_MANY]
    idle = replace(known, runs=(RequeueRun(pk=8, state=RunState.RUNNING, created_at=ago(minutes=3), total=300),))
    [waits] = [one for one in needs(idle, []) if one.code is Code.PARKED_MANY]

    where = "GatewayTimeout: transfer 2,000, card 2,000. The rest in 11 other error groups. The oldest 3 h ago."
    assert found.why == f"{where} 7 more wait behind blocked keys."
    assert found.text.endswith(" Requeue run 8 by ann is sending 300 of them; nobody sends the other 4,412.")
    assert waits.why == f"{where} Requeue run 8 is to send 300 of them. 7 more wait behind blocked keys."


def test_parked_messages_are_told_by_facts_and_not_that_one_waits_for_an_operator() -> None:
    """ "A parked message waits for an operator" stood beside "34 messages parked"."""
    said = [
        one.why
        for hours in (3, 30)
        for one in needs(surveyed(parked=ParkedCounts(count=34, oldest=ago(hours=hours))), [])
    ]

    assert said == ["The oldest 3 h ago.", "The oldest 1 d ago. None should wait longer than 4 h."]


ONE_CAUSE = replace(GATEWAY, count=140, only=3, others=0, places={"transfer": 140}, last_new=ago(seconds=20))


def under_a_run(parked: int, to_send: int, cause: LargestCause = ONE_CAUSE, **facts: Any) -> Problem:
    """The finding of parked messages of which a run, which began 10 s ago, is to send some."""
    state = {"state": RunState.RUNNING, "total": 200, "sent": 200 - to_send, "beat_at": NOW, **facts}
    run = RequeueRun(pk=8, by="ann", created_at=ago(seconds=10), **state)
    known = surveyed(
        parked=ParkedCounts(count=parked, oldest=ago(hours=30)),
        cause=replace(cause, count=parked),
        runs=(run,),
        to_send=0 if run.state == RunState.PAUSED else to_send,
    )
    [found] = [one for one in needs(known, []) if one.code.name.startswith("PARKED")]
    return found


def test_parked_messages_that_a_run_sends_need_nobody_and_no_second_run() -> None:
    """Live status said "140 messages parked: GatewayTimeout, growing" while a run was sending exactly these, and
    rmq_status proposed to requeue them."""
    found = under_a_run(140, 140)

    assert (found.code, found.severity) == (Code.PARKED_UNDER_WAY, Severity.WARNING)
    assert found.text == "140 messages parked: GatewayTimeout. Requeue run 8 by ann is sending them: 60 of 200 sent."
    assert found.fix == "manage.py rmq_parked requeue-run 8"
    assert found.rule.under_way
    assert (found.rule.known_as, found.rule.alerts_once) == ("PARKED", True), "for alerts it goes on"


@pytest.mark.parametrize(
    ("failed", "left", "code"), [(3, 3, Code.PARKED), (3, 4, Code.PARKED_LONG), (150, 150, Code.PARKED_MANY)]
)
def test_beside_a_run_only_what_it_does_not_send_is_judged(failed: int, left: int, code: Code) -> None:
    """The oldest is a day old: those that failed again are younger, and it may be one of the others."""
    again = replace(ONE_CAUSE, again_at=ago(seconds=5), last_seen=ago(seconds=5))
    found = under_a_run(40 + left, 40, again, failed=failed)

    assert found.code is code
    assert found.text == (
        f"{40 + left} messages parked: GatewayTimeout, failed again 5 s ago. Requeue run 8 by ann "
        f"is sending 40 of them; nobody sends the other {left}."
    )
    assert found.fix == "manage.py rmq_parked requeue --group 3 --dry-run"


def test_only_what_was_parked_after_a_run_began_makes_a_cause_grow_beside_it() -> None:
    assert ", growing. Requeue run 8" in under_a_run(50, 40, replace(ONE_CAUSE, last_new=ago(seconds=9))).text
    assert ", growing" not in under_a_run(50, 40).text


@pytest.mark.parametrize(
    "facts",
    [
        {"state": RunState.PLANNED},
        {"beat_at": ago(seconds=13)},
        {"wait": RunWait.NO_CONSUMER},
        {"wait": RunWait.QUEUE_FULL, "sent_at": ago(minutes=5)},
    ],
)
def test_a_run_that_sends_nothing_now_ends_no_finding(facts: dict[str, Any]) -> None:
    found = under_a_run(140, 140, **facts)

    assert found.code is Code.PARKED_MANY
    assert "Requeue run 8 is to send 140 of them." in found.why
    assert found.fix == "manage.py rmq_parked requeue-run 8"


@pytest.mark.parametrize("parked", [140, 153])
def test_what_a_paused_run_has_to_send_is_told_with_it_and_not_proposed_again(parked: int) -> None:
    """Its guard had paused it as 13 failed again: rmq_status proposed to requeue these."""
    found = under_a_run(parked, 140, state=RunState.PAUSED)

    assert found.code is Code.PARKED_MANY
    assert "Requeue run 8 is paused with 140 of them." in found.why
    assert (found.fix, found.values["runs"]) == ("manage.py rmq_parked requeue-run 8", ["8"])


def test_the_first_link_leads_to_the_run_that_is_named_first() -> None:
    """ "Requeue run 3 is sending 7 of them" stood beside "Open requeue run 2", which was paused."""
    paused = RequeueRun(pk=2, by="ann", state=RunState.PAUSED, wait=RunWait.GUARD, created_at=ago(minutes=3), total=4)
    sending = RequeueRun(pk=3, by="bob", state=RunState.RUNNING, created_at=NOW, beat_at=NOW, total=7)
    stopped = LeftBehind(run=RequeueRun(pk=1), count=5, by="root")
    cause = replace(ONE_CAUSE, count=30, second=("UnknownAccount", 9, {"card": 9}), others=1)
    counts = {"parked": ParkedCounts(count=39, oldest=NOW), "cause": cause, "to_send": 7}
    known = surveyed(runs=(paused, sending), left_behind=(stopped,), **counts)
    [found] = [one for one in needs(known, []) if one.code is Code.PARKED]

    assert "; 9 UnknownAccount. Requeue run 3 by bob is sending 7 of them" in found.text
    assert found.why.startswith(
        "GatewayTimeout: transfer 140. UnknownAccount: card 9. Requeue run 1 was stopped by root, and 5 of its parked"
    )
    assert found.values["runs"] == ["3", "1"]


def test_of_two_causes_that_are_named_both_have_their_queues() -> None:
    """ "2 AccountClosed; 1 GatewayTimeout" stood above the queues of AccountClosed alone."""
    cause = replace(GATEWAY, second=("UnknownAccount", 9, {"card": 5, "mail": 4}), others=1)
    [parked] = in_survey(surveyed(parked=ParkedCounts(count=4009, oldest=NOW), cause=cause), Limits())

    assert "GatewayTimeout: transfer 2,000, card 2,000. UnknownAccount: card 5, mail 4. The oldest" in parked.why


ONE_AND_MANY = {
    Code.NO_OUTCOME: "was sent to its queue",
    Code.RETRIES_OVERDUE: "waits behind",
    Code.PERHAPS_TWICE: "was first in the hands",
    Code.RUN_PERHAPS_TWICE: "was first in the hands",
    Code.VANISHED: "was killed",
}


@pytest.mark.parametrize("code", ONE_AND_MANY)
def test_what_is_said_of_one_is_not_said_of_each(code: Code) -> None:
    said = [Problem(code=code, count=count, values={"held": ""}).why for count in (1, 2)]

    assert [text.split(" ", 1)[0] for text in said] == ["It", "Each"]
    assert all(ONE_AND_MANY[code] in text for text in said)


def test_a_blocking_broker_is_named_in_the_readers_language() -> None:
    problem = Problem(code=Code.BROKER_BLOCKS, values={"reason": "low on disk"})
    english = problem.text, problem.why
    with override("de"):
        german = problem.text, problem.why

    assert "low on disk" in german[0]
    assert not set(english) & set(german)


def test_a_command_says_the_zone_of_a_time_beside_its_times_in_utc_and_a_page_does_not() -> None:
    held = surveyed(**stopped(paused=True, since=NOW, until=ago(minutes=-5)))
    reads = (process(1, queues=["a b"]),)
    probed = surveyed(processes=reads, **stopped(opened=True, opened_at=NOW, probe_at=ago(minutes=-1)))
    with override(None):
        said = [one.why for known in (held, probed) for one in needs(known, [])]
    shown = [one.why for known in (held, probed) for one in needs(known, [])]

    zone = timezone.localtime(NOW).tzname()
    assert [text.endswith(f" {zone}.") for text in said] == [True, True], said
    assert not any(f" {zone}" in text for text in shown)


def test_limits_of_a_command_replace_or_turn_off_those_of_the_rules() -> None:
    old = ago(days=2)
    survey = surveyed(
        parked=ParkedCounts(count=3, oldest=old), outbox=PendingRows(waiting=1, oldest=old), **halted(old)
    )
    none = Limits(parked_age=None, halted_age=None, outbox_age=timedelta(days=3), max_parked=4)
    unrecorded = [level("q.parked", Role.PARKED, ready=2)]

    assert codes(in_survey(survey, none)) == ["PARKED", "HALTED"]
    assert codes(too_many_parked(unrecorded, survey, none)) == ["TOO_MANY_PARKED"]
    assert codes(too_many_parked([], survey, none)) == []


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        ({}, "manage.py rmq_parked requeue --group 7 --dry-run"),
        ({"permanent": True}, "manage.py rmq_parked list --group 7"),
        ({"perhaps_done": True}, "manage.py rmq_parked list --group 7"),
    ],
)
def test_the_only_cause_is_requeued_unless_somebody_has_to_look_first(facts: dict[str, Any], command: str) -> None:
    cause = replace(GATEWAY, only=7, others=0, **facts)
    [parked] = in_survey(surveyed(parked=ParkedCounts(count=4000, oldest=NOW), cause=cause), Limits())

    assert parked.fix == command


def item(state: PlanState, **facts: Any) -> Item:
    return Item(declaration=QueueDeclaration(name="q"), state=state, **facts)


PLANS: list[tuple[Item, str, str]] = [
    (item(PlanState.CREATE), "DEFINITION_MISSING", "manage.py rmq_declare"),
    (item(PlanState.MISSING), "EXTERNAL_MISSING", "Ask its owner to create it, "),
    (item(PlanState.REFUSED), "NOT_DECLARABLE", "Correct its definition; "),
    (
        item(PlanState.DIFFERS, differences=(Difference(argument="x-a", here=1, broker=2),)),
        "DIFFERS",
        "Stop its consumers and publishers, then run manage.py rmq_declare --recreate q",
    ),
    (
        Item(declaration=QueueDeclaration(name="q", existing=True), state=PlanState.DIFFERS),
        "DIFFERS",
        "Define it as the broker has it, or ask its owner to change it.",
    ),
    (
        Item(declaration=ExchangeDeclaration(name="e", type="topic"), state=PlanState.DIFFERS),
        "DIFFERS",
        "rmq_declare does not change it, because another program may own it: define it as the broker has it, ",
    ),
    (
        Item(declaration=QueueDeclaration(name="a b.moving"), state=PlanState.LEFT),
        "MOVE_LEFT",
        "manage.py rmq_declare --recreate 'a b'",
    ),
]


@pytest.mark.parametrize(("one", "code", "fix"), PLANS)
def test_the_plan(one: Item, code: str, fix: str) -> None:
    same = item(PlanState.SAME), item(PlanState.UNSEEN)
    [problem] = in_plan(Plan(server=Server(product="RabbitMQ", version=(4, 0)), items=(*same, one)))

    assert (problem.code.name, problem.fix[: len(fix)]) == (code, fix)


def process(number: int, age: float = 2, **fields: Any) -> ConsumerProcess:
    times = {"started_at": ago(hours=2), "beat_at": ago(seconds=age)}
    return ConsumerProcess(host="web", pid=number, **{**times, "connected": True, **fields})


def test_heartbeats() -> None:
    rows = [
        process(4, deploy="v0", stopping=True),
        process(3, 95, deploy="v0", queues=["a"]),
        process(1, deploy="v1"),
        process(2, 6, deploy="v2", connected=False),
        process(5, 9, deploy="v2", connected=False),
        process(6, 6, deploy="v2", connected=False, started_at=ago(seconds=7)),
    ]

    assert [problem.text for problem in in_processes(rows, NOW)] == [
        "1 of 5 consumers without a heartbeat for 30 s: web:3 (1 min ago).",
        "Consumers run 2 versions of the project: v1 (1), v2 (3).",
        "Without a connection to the broker: web:2.",
    ]
    assert list(in_processes([process(1)], NOW)) == []


def test_of_dead_processes_only_those_that_nobody_has_replaced_need_somebody() -> None:
    """A later process that reads the same queues replaces one of them: a process that dies again and again does not."""
    gone = [process(one, 60 * (9 - one), queues=["a"], started_at=ago(hours=1)) for one in range(1, 4)]
    later = process(7, queues=["a", "b"], started_at=ago(minutes=3))
    other = process(8, queues=["b"], started_at=ago(minutes=3))
    found = in_processes([*gone, later, other], NOW)

    assert [problem.text for problem in found if problem.code is Code.VANISHED] == [
        "2 of 4 consumers without a heartbeat for 30 s: web:2 (7 min ago), web:1 (8 min ago)."
    ]


def line(*lives: tuple[float, float], last: float | None = None) -> list[ConsumerProcess]:
    """Processes that replaced one another: the minutes since each began and since it died; the last one may live."""
    dead = [
        process(number, 60 * died, queues=["a"], started_at=ago(minutes=began))
        for number, (began, died) in enumerate(lives, 1)
    ]
    return dead if last is None else [*dead, process(9, queues=["a"], started_at=ago(minutes=last))]


LINES: list[tuple[list[ConsumerProcess], list[str]]] = [
    (line((90, 20), (19, 10), last=9), []),
    (line((90, 20), (19, 10)), ["web:2"]),
    (line((90, 20), (19, 10), (9, 5), last=4), ["web:3"]),
    (line((90, 20), (19, 10), (9, 5)), ["web:3"]),
    (line((190, 60), (59, 40), (39, 20), (19, 10), last=9), []),
    # It has read another queue, so nobody has taken it over.
    ([process(5, 60 * 30, queues=["a", "b"]), *line((90, 20), (19, 10), last=9)], ["web:5"]),
    # Two died at once, and two came after them, of which one died.
    ([process(5, 60 * 9, queues=["a"]), *line((90, 9), (8, 5), last=4)], ["web:1"]),
]


@pytest.mark.parametrize(("rows", "named"), LINES)
def test_a_process_whose_replacement_died_too_is_replaced_by_the_next_but_a_crash_loop_warns(
    rows: list[ConsumerProcess], named: list[str]
) -> None:
    assert sorted(map(str, unreplaced(dead_processes(rows, NOW)))) == named


def test_a_loop_has_no_process_that_was_killed_before_it_beside_others() -> None:
    """Three were killed, and one that dies again and again "replaced" each: the loop named what these had in hand."""
    killed = [
        process(number, 60 * died, queues=["a"], started_at=ago(minutes=29), in_flight=[{"key": "SLOW-1"}])
        for number, died in ((11, 9), (12, 8), (13, 7))
    ]
    rows = line((6, 5.5), (5.4, 5), (4.9, 4.5), last=4)
    found = {problem.code: problem for problem in in_processes([*killed, *rows], NOW)}

    assert found[Code.CRASH_LOOP_OVER].count == 4
    assert found[Code.CRASH_LOOP_OVER].why.startswith("No message was in more than one of them at its last heartbeat: ")
    assert found[Code.VANISHED].text.endswith(": web:12 (8 min ago), web:11 (9 min ago).")


def test_a_crash_loop_is_one_red_line_with_what_its_processes_had_in_hand() -> None:
    """Nobody saw that workers died as they started: "10 consumers without a heartbeat" stood below five red queues."""
    rows = line((90, 3), (2.9, 2), (1.9, 1))
    for row, keys in zip(rows, (["LED-3"], ["CARD-7", "LED-3"], ["CARD-7", "LED-3"]), strict=True):
        row.in_flight = [{"key": key} for key in keys]
    next_one = process(9, 8, queues=["a"], started_at=ago(seconds=9), connected=False)
    away = process(7, queues=["b"], connected=False)
    first, *rest = in_processes([*rows, next_one, away], NOW)

    assert (first.code, first.severity) == (Code.CRASH_LOOP, Severity.ERROR)
    assert first.text == f"Consumers of a die again and again: 3 since {SINCE}, the last one 1 min ago."
    assert first.why == "In flight as they died, and how often: LED-3 (3), CARD-7 (2). web:9 has run for 9 s."
    assert [one.text for one in rest] == ["Without a connection to the broker: web:7."]


def test_a_crash_loop_seems_over_once_its_last_process_outlived_the_others() -> None:
    running, [over] = (
        list(in_processes(line((90, 20), (19, 10), (9, 5), last=4), NOW)),
        in_processes(line((90, 25), (24, 20), (19, 15), last=14), NOW),
    )

    assert codes(running) == ["CRASH_LOOP"]
    assert over.code is Code.CRASH_LOOP_OVER
    told = "None had reported a message of these queues in flight: their logs say why they ended."
    assert over.why == f"{told} It seems over: web:9 has run for 14 min."


def test_a_process_that_hangs_after_a_crash_loop_is_no_part_of_it() -> None:
    """It had run for minutes: the advice to end it before it goes on was lost in the fold of the loop."""
    rows = line((10, 9), (8.9, 8.7), (8.6, 8.4), (8.3, 1))
    found = {problem.code: problem for problem in in_processes(rows, NOW)}

    assert "web:4" in found[Code.VANISHED].text
    assert found[Code.CRASH_LOOP_OVER].text.startswith("Consumers of a died again and again: 3 since")


def test_a_loop_that_was_over_does_not_go_on_with_one_later_death() -> None:
    """It was over for 13 minutes; a deployment ended the one that lived, and 30 died "again and again", in red."""
    rows = line((20, 19.5), (19.4, 19), (18.9, 18.5), (18.4, 1), last=0.9)
    found = {problem.code: problem for problem in in_processes(rows, NOW)}

    assert list(found) == [Code.CRASH_LOOP_OVER]
    assert found[Code.CRASH_LOOP_OVER].count == 3
    assert found[Code.CRASH_LOOP_OVER].why.endswith(" their logs say why they ended.")
    again = line((20, 19.5), (19.4, 19), (18.9, 18.5), (18.4, 3), (2.9, 2.5), (2.4, 2), last=1.9)
    assert codes(list(in_processes(again, NOW))) == ["CRASH_LOOP"]


def test_two_deaths_are_no_crash_loop() -> None:
    """An operator ended one consumer, and then all: they were said to die again and again, twice."""
    rows, unrestarted = line((90, 1), (0.9, 0.7), last=0.6), line((90, 3.5), (3, 1))

    assert list(in_processes(rows, NOW)) == []
    assert codes(list(in_processes(unrestarted, NOW))) == ["VANISHED"]


def test_those_that_gave_back_when_they_were_told_to_end_are_no_crash_loop() -> None:
    """Two deployments whose handlers needed longer counted as crashes, and "no other was started" beside its heir."""
    rows = line((90, 3), (3.1, 2), (2.1, 1), last=1.2)
    for row in rows[:3]:
        row.ended_at, row.stopping, row.gave_back = row.beat_at, True, True
        row.fault = "exit 1: SIGTERM, but 1 handler did not finish within 30 s"

    assert list(in_processes(rows, NOW)) == []
    assert codes(list(in_processes(rows[:1], NOW))) == ["ENDED"]


def test_one_that_gave_back_while_others_died_is_not_counted_with_them() -> None:
    given: dict[str, Any] = {"ended_at": ago(minutes=1.5), "stopping": True, "gave_back": True}
    back = process(5, 90, queues=["a"], started_at=ago(minutes=30), in_flight=[{"key": "SLOW-1"}], **given)
    rows = line((9, 3), (2.9, 2), (1.9, 1), last=0.9)
    rows[2].in_flight = [{"key": "KILLER-1", "published": ago(minutes=40).isoformat()}]
    [loop] = in_processes([*rows, back], NOW)

    assert (loop.code, loop.count) == (Code.CRASH_LOOP, 3)


def test_a_death_that_is_known_counts_at_once() -> None:
    """Consumers called it dead, and Live status had no finding for another 20 s."""
    rows = line((90, 0.4), (0.38, 0.3), (0.28, 0.15), last=0.1)
    for row in rows[:3]:
        row.ended_at, row.fault, row.stopping = NOW, "its process is gone", True
    alone = [process(1, 3, queues=["a"], ended_at=NOW, fault="exit 1: it hung", stopping=True)]

    assert codes(list(in_processes(rows, NOW))) == ["CRASH_LOOP"]
    assert codes(list(in_processes(alone, NOW))) == ["ENDED"]


def test_a_loop_is_not_over_by_a_process_that_is_dead() -> None:
    """It "has run for 17 min", and had been killed a minute before: what lives is named, once it has run for long."""
    rows = line((20, 19.5), (19.4, 19), (18.9, 18.5), (18.4, 6), last=5)
    found = {problem.code: problem for problem in in_processes(rows, NOW)}
    unread = {problem.code: problem for problem in in_processes(rows[:-1], NOW)}

    assert found[Code.CRASH_LOOP_OVER].why.endswith("It seems over: web:9 has run for 5 min.")
    assert unread[Code.CRASH_LOOP_OVER].why.endswith("Nobody reads a now.")


def test_each_service_that_dies_again_and_again_is_a_finding_of_its_own() -> None:
    """Two handlers killed their workers, and one line added both up, with keys of neither."""
    rows, others = line((90, 3), (2.9, 2), (1.9, 1)), line((90, 4), (3.9, 3), (2.9, 2), (1.9, 0.6))
    for row in others:
        row.queues, row.in_flight = ["b"], [{"key": "SLOW-1"}]
    found = list(in_processes([*rows, *others], NOW))

    assert [(one.code, one.subject, one.count) for one in found] == [
        (Code.CRASH_LOOP, "b", 4),
        (Code.CRASH_LOOP, "a", 3),
    ]
    assert "SLOW-1" not in found[1].why
    assert found[0].why == (
        "In flight as they died, and how often: SLOW-1 (4). Nobody reads b until the next one has started."
    )


def test_two_services_that_die_of_the_same_queues_are_one_finding() -> None:
    """Eight had died within half a minute, and five were counted."""
    found = list(in_processes([*line((90, 3), (2.9, 2), (1.9, 1)), *line((90, 3.05), (2.94, 2.1), (1.94, 0.9))], NOW))

    assert [(one.code, one.count) for one in found] == [(Code.CRASH_LOOP, 6)]


def test_a_loop_that_one_outlived_for_a_minute_is_not_forgotten_as_that_one_dies() -> None:
    """14 workers had died of a message; as another one was killed, the pages told of 8."""
    early, late = (
        line((90, 3), (2.95, 2.9), (2.85, 2.8), last=2.75),
        line((90, 3), (2.95, 2.9), (2.85, 2.8), (2.75, 1), last=0.9),
    )

    assert [(one.code, one.count) for one in in_processes(early, NOW)] == [(Code.CRASH_LOOP_OVER, 3)]
    assert [(one.code, one.count) for one in in_processes(late, NOW)] == [(Code.CRASH_LOOP_OVER, 3)]


def told_of_loops(rows: list[ConsumerProcess], minutes: float) -> list[tuple[Any, ...]]:
    """What is told of crash loops so many minutes later, if nobody else dies."""
    now = NOW + timedelta(minutes=minutes)
    for row in rows:
        if row.living(NOW):
            row.beat_at = now
    return [(one.severity.name, one.count, one.since) for one in in_processes(rows, now) if "CRASH" in one.code.name]


def test_a_crash_loop_has_as_many_dead_and_began_at_the_same_time_until_it_is_told_of_no_more() -> None:
    """Five had died, then four, three and two, and "since" moved with them: each left sight half an hour after it."""
    rows = line((90, 9), (8.9, 7), (6.9, 5), (4.9, 3), (2.9, 1), last=0.9)
    told = {minutes: told_of_loops(rows, minutes) for minutes in (0, 1, 10, 20, 22, 25, 28, 28.9, 29.1, 60)}

    assert told[0] == [("ERROR", 5, rows[0].beat_at)]
    assert {str(one) for minutes, one in told.items() if 10 <= minutes < 29} == {str([("WARNING", 5, rows[0].beat_at)])}
    assert told[29.1] == told[60] == []


def test_a_crash_loop_that_goes_on_for_hours_counts_from_its_first_death() -> None:
    """After half an hour each new death was counted in the place of the first one."""
    lives = [(minutes + 4.9, minutes) for minutes in range(180, 0, -5)]

    assert told_of_loops(line(*lives, last=0.9), 0) == [("ERROR", 36, ago(minutes=180))]
    assert told_of_loops(line(*lives), 50) == [("ERROR", 36, ago(minutes=180))]


def test_one_that_dies_every_quarter_of_an_hour_is_told_of_between_its_deaths_too() -> None:
    """Three deaths within half an hour were red, and white again before the fourth one."""
    rows = line((90, 30), (29.9, 15.5), (15.4, 1), last=0.9)

    assert [told_of_loops(rows, minutes) for minutes in (0, 5, 12)] == [[("ERROR", 3, rows[0].beat_at)]] * 3


def test_kills_of_minutes_before_are_no_part_of_a_loop_that_begins() -> None:
    """ "12 since 01:11" and "3 since 01:21" stood on two pages: three had been killed for other reasons before."""
    killed = ((30, 10), (9.9, 6), (5.9, 2))
    first = (1.95, 1.9), (1.85, 1.8)

    assert told_of_loops(line(*killed, *first, last=1.75), 0) == [("ERROR", 3, ago(minutes=2))]


def test_two_that_died_of_one_message_are_counted_together_after_one_of_them_lives_on() -> None:
    """Six had died; then one service seemed over, and three had."""
    rows = [*line((90, 5), (4.9, 4), (3.9, 3), last=2.9), *line((90, 5.1), (4.8, 3.8), (3.7, 2.7), last=1)]
    began = rows[4].beat_at
    early, later, last = (told_of_loops(rows, minutes) for minutes in (0, 0.5, 4))

    assert (early, later) == ([("ERROR", 6, began)], [("ERROR", 6, began)])
    assert last == [("WARNING", 6, began)]


def test_a_loop_stays_over_when_a_deployment_replaces_the_one_that_outlived_it() -> None:
    """It turned red again for as long as the new one had not lived for longer."""
    rows = line((90, 16), (15.9, 15), (14.9, 14), last=1)

    assert told_of_loops(rows, 0) == [("WARNING", 3, rows[0].beat_at)]


def test_a_loop_that_was_noted_as_over_stays_so_after_the_one_that_outlived_it_has_ended_in_good_order() -> None:
    """A deployment minutes later made it red again, and "No consumer is alive: 3 ended" named those of the loop."""
    rows = line((90, 9), (8.9, 8), (7.9, 7))
    fresh = process(9, queues=["a"], started_at=ago(minutes=0.1))
    before = told_of_loops([*rows, fresh], 0)
    rows[-1].replaced = True

    assert before == [("ERROR", 3, rows[0].beat_at)]
    assert told_of_loops([*rows, fresh], 0) == told_of_loops(rows, 0) == [("WARNING", 3, rows[0].beat_at)]
    assert last_signs(rows, NOW, dead_processes(rows, NOW)) is None


def test_messages_that_are_parked_since_a_loop_began_are_named_before_what_was_in_flight() -> None:
    """One that kills at once is in no heartbeat: innocent ones were named, each once, and not the one that killed."""
    rows = line((90, 3), (2.9, 2), (1.9, 1), last=0.9)
    for number, row in enumerate(rows):
        row.in_flight = [{"key": f"PAY-{number}"}]
    suspects = [
        ParkedMessage(business_key="KILLER", queue="a", parked_at=ago(minutes=1), group_id=7),
        ParkedMessage(business_key="ELSEWHERE", queue="b", parked_at=ago(minutes=1), group_id=8),
        ParkedMessage(business_key="EARLIER", queue="a", parked_at=ago(minutes=9), group_id=9),
    ]
    [found] = in_processes(rows, NOW, suspects=suspects)

    assert found.why == "Parked meanwhile because their worker died: KILLER. web:9 has run for 54 s."
    assert found.values["group_of_killer"] == "7"


def test_what_became_of_the_killer_of_a_loop_is_told_and_how_long_the_next_consumer_has_run() -> None:
    """It had been discarded, and the finding said that it was parked, and eight times in flight."""
    rows = line((90, 3), (2.9, 2), (1.9, 1), last=0.9)
    for row in rows[:3]:
        row.in_flight = [{"key": "KILLER"}, {"key": "OTHER"}]
    states = {"KILLER": "discarded", "SECOND": "requeued", "THIRD": "on_hold"}
    suspects = [
        ParkedMessage(business_key=name, queue="a", parked_at=ago(minutes=1), state=state, group_id=7)
        for name, state in states.items()
    ]
    [found] = in_processes(rows, NOW, suspects=suspects)

    killed = "Parked meanwhile because their worker died: KILLER (discarded), SECOND (requeued), THIRD."
    assert found.why == f"{killed} In flight as they died, and how often: OTHER (3). web:9 has run for 54 s."


def test_what_was_killed_by_hand_before_a_message_killed_at_once_is_no_part_of_its_loop() -> None:
    """Twelve were counted since 12:22; four had been killed by hand before the message came, which killed eight."""
    rows = line((20, 12), (11.9, 10.5), (10.4, 9), (8.9, 7), *((6.9 - one / 20, 6.88 - one / 20) for one in range(8)))
    [found] = [one for one in in_processes(rows, NOW) if one.code is Code.CRASH_LOOP]

    assert (found.count, found.since) == (9, rows[3].beat_at)


def test_one_that_did_not_start_and_one_that_was_killed_two_minutes_later_are_no_loop() -> None:
    """It stayed in red above "No consumer is running" until after all work was done."""
    rows = line((3, 2.98), (2.9, 1.2), last=1.1)

    assert [one.code for one in in_processes(rows, NOW) if one.code in (Code.CRASH_LOOP, Code.CRASH_LOOP_OVER)] == []


def test_what_died_before_its_killer_was_published_is_no_part_of_its_loop() -> None:
    rows = line((20, 12), (11.9, 10.5), (10.4, 9.2), (9.1, 8), (7.9, 6.9), (6.8, 6.7), last=6.6)
    killer = ParkedMessage(
        business_key="DIE-1", queue="a", published_at=ago(minutes=7), parked_at=ago(minutes=6.6), group_id=7
    )
    [found] = in_processes(rows, NOW, suspects=[killer])

    assert (found.count, found.since) == (2, rows[4].beat_at)


def reported(row: ConsumerProcess, *minutes: float | None) -> None:
    """Let a process have had messages in flight, each published so many minutes ago."""
    each = [None if one is None else ago(minutes=one).isoformat() for one in minutes]
    row.in_flight = [{"queue": "a", "key": f"K-{place}", "published": at} for place, at in enumerate(each)]


def test_what_died_before_the_message_in_hand_was_published_is_no_part_of_its_loop_before_it_is_parked() -> None:
    """11 were counted, three of them killed by hand minutes before, until the message was parked: then it was 8."""
    rows = line((20, 3), (2.9, 2.6), (2.5, 2.2), (2.1, 1.5), (1.4, 1.3), (1.2, 1.1), last=1)
    for row in rows[3:6]:
        reported(row, 1.6)
    [found] = in_processes(rows, NOW)

    assert (found.code, found.count, found.since) == (Code.CRASH_LOOP, 3, rows[3].beat_at)
    assert found.why.startswith("In flight as they died, and how often: K-0 (3).")


def test_one_that_died_beside_a_loop_of_the_message_in_hand_is_counted_with_it() -> None:
    """Three had died since 17:25, two of them killed by hand, and of the two that a message had killed one counted."""
    rows, others = line((20, 3), (2.9, 2.6), (2.5, 1.1), last=1), line((20, 1.2), last=1.15)
    for row in (*rows, *others):
        row.ended_at = None if row.living(NOW) else row.beat_at
    reported(rows[2], 1.3)
    [found] = in_processes([*rows, *others], NOW)

    assert (found.code, found.count, found.since) == (Code.CRASH_LOOP, 2, others[0].beat_at)


def test_a_message_that_came_beside_one_that_kills_at_once_leaves_none_of_its_deaths_out() -> None:
    rows = line((20, 3), (2.9, 2.6), (2.5, 1.5), (1.48, 1.45), (1.43, 1.4), (1.38, 1.35), last=1.33)
    reported(rows[5], 1.2)
    [found] = in_processes(rows, NOW)

    assert (found.count, found.since) == (4, rows[2].beat_at)


@pytest.mark.parametrize("published", [None, 5], ids=["unknown", "before all"])
def test_all_of_a_loop_count_if_the_message_in_hand_may_have_killed_them(published: float | None) -> None:
    rows = line((20, 3), (2.9, 2.6), (2.5, 2.2), last=2.1)
    reported(rows[2], 1.6, published)
    [found] = in_processes(rows, NOW)

    assert (found.count, found.since) == (3, rows[0].beat_at)


def test_what_a_signal_ended_before_others_exited_is_no_part_of_their_loop() -> None:
    """Two that were killed by hand counted with eight that a message had killed at once, which no heartbeat named."""
    rows = line((20, 1.5), (1.45, 1.1), (1.05, 0.9), (0.85, 0.8), (0.75, 0.7), last=0.65)
    for row, fault in zip(rows, ("SIGKILL", "SIGKILL", "exit 1", "exit 1", "exit 1"), strict=False):
        row.ended_at, row.fault, row.stopping = row.beat_at, fault, True
    [found] = in_processes(rows, NOW)

    assert (found.count, found.since) == (3, rows[2].beat_at)


@pytest.mark.parametrize("heir", [[], [process(8, queues=["a"], started_at=ago(minutes=4.9))]], ids=["yet", "then"])
def test_one_that_is_killed_after_a_loop_is_never_counted_with_it(heir: list[ConsumerProcess]) -> None:
    """Eight had died, then nine for the second in which none was started in the place of that one, then eight."""
    rows = line((30, 8), (7.95, 7.9), (7.85, 7.8), last=7.75)
    killed = process(7, 300, queues=["a"], started_at=ago(minutes=30))
    killed.ended_at, killed.fault, killed.stopping = killed.beat_at, "SIGKILL", True
    reported(rows[2], 9)
    found = {one.code: one.count for one in in_processes([*rows, killed, *heir], NOW)}

    assert found[Code.CRASH_LOOP_OVER] == 3


@pytest.mark.parametrize(("minutes", "found"), [(0, ["CRASH_LOOP"]), (1, ["CRASH_LOOP", "ALL_VANISHED"])])
def test_nobody_is_told_to_start_what_dies_again_and_again_until_it_is_restarted_no_more(
    minutes: float, found: list[str]
) -> None:
    """A supervisor did so, and "No consumer is alive" with that advice stood beside "Nobody reads q now"."""
    rows = [
        process(number, 60 * died, queues=["q", "r"], started_at=ago(minutes=began))
        for number, began, died in ((1, 20, 1), (2, 0.9, 0.8), (3, 0.7, 0.6), (4, 0.5, 0.4))
    ]
    for row in rows:
        row.ended_at, row.fault, row.stopping = row.beat_at, "exit 1", True
    at, queues = (
        NOW + timedelta(minutes=minutes),
        [level("q", ready=2), level("r"), level("q.quarantine", Role.QUARANTINE)],
    )
    known = replace(surveyed(processes=rows, killers=()), at=at, dead=dead_processes(rows, at))
    told = needs(known, queues)

    assert codes(told) == found
    when = "now" if minutes else "until the next one has started"
    assert f"Nobody reads q, r {when}." in told[0].why


@pytest.mark.parametrize(
    ("ready", "said"),
    [
        (0, "What kills its workers is soon tried alone in quarantine, and parked if it kills on."),
        (1, "1 message of a is in quarantine: it is tried alone, and parked if it kills on."),
    ],
)
def test_a_loop_tells_what_is_in_quarantine_until_what_killed_is_parked(ready: int, said: str) -> None:
    """One that kills before a heartbeat is named nowhere: nobody knew that it was set aside, or what to wait for."""
    rows = line((90, 3), (2.9, 2), (1.9, 1), last=0.9)
    queues = [level("a", consumers=1), level("a.quarantine", Role.QUARANTINE, ready=ready, consumers=1)]
    killer = ParkedMessage(business_key="KILLER", queue="a", parked_at=ago(minutes=0.98), group_id=7)
    told, named = (needs(surveyed(processes=rows, killers=some), queues)[0].why for some in ((), (killer,)))

    assert told.endswith(f" {said}")
    assert "quarantine" not in named


def test_a_loop_is_over_once_its_killer_is_parked_and_none_has_died_for_longer_than_any_lived() -> None:
    """It was red, and in the present tense, for two minutes after the last death, and its killer was discarded."""
    rows = [*line((90, 1), (0.95, 0.8), (0.75, 0.6), last=0.55), *line((2, 0.95), (0.92, 0.87), (0.85, 0.7), last=0.65)]
    early, late = (
        ParkedMessage(business_key="KILLER", queue="a", parked_at=ago(minutes=one), state="discarded", group_id=7)
        for one in (0.2, 0.4)
    )
    before = ParkedMessage(business_key="OTHER", queue="a", parked_at=ago(minutes=0.61), group_id=7)
    told = [found.code for one in (early, late, before) for found in in_processes(rows, NOW, suspects=[one])]
    [over] = in_processes(rows, NOW, suspects=[late])

    assert told == [Code.CRASH_LOOP, Code.CRASH_LOOP_OVER, Code.CRASH_LOOP]
    killed = "Parked meanwhile because their worker died: KILLER (discarded)."
    assert over.why == f"{killed} It seems over: web:9 has run for 39 s."


def test_what_is_parked_long_after_a_loop_is_not_said_to_have_caused_it() -> None:
    """Consumers that had been killed by hand became "Consumers of mail.send die again and again" minutes later."""
    rows = line((90, 13), (12.9, 12), (11.9, 11), last=10.9)
    suspects = [ParkedMessage(business_key="LATER", queue="a", parked_at=ago(minutes=1), group_id=7)]

    assert "LATER" not in " ".join(one.text + one.why for one in in_processes(rows, NOW, suspects=suspects))


def test_a_process_that_does_not_read_the_queue_of_a_loop_does_not_show_that_it_is_over() -> None:
    """It "seems over: vm:1 has run for 7 min", which read other queues only, and two had died since."""
    rows, other = line((90, 25), (24, 20), (19, 15)), process(8, queues=["a"], started_at=ago(hours=1))
    for row in rows:
        row.queues, row.replaced = ["a", "mail"], True
    [over] = in_processes([*rows, other], NOW)

    assert over.code is Code.CRASH_LOOP_OVER
    assert "It seems over" not in over.why


def test_a_loop_that_is_over_stays_so_while_the_broker_is_away() -> None:
    """It turned red again although nobody died: the process with which it was over had lost its connection."""
    rows = line((90, 25), (24, 20), (19, 15), last=14)
    rows[-1].connected, rows[-1].lost_at = False, ago(minutes=1)

    assert Code.CRASH_LOOP_OVER in [one.code for one in in_processes(rows, NOW)]


def test_what_an_operator_killed_before_a_loop_is_no_part_of_it() -> None:
    """Two single kills of minutes before were counted with it, and it was said to have begun with them."""
    rows = line((90, 12), (11.9, 8), (7.9, 3), (2.9, 2.5), (2.4, 2.2), (2.1, 1.9), (1.8, 1.6), last=1.5)
    [found] = in_processes(rows, NOW)

    assert (found.code, found.count, found.since) == (Code.CRASH_LOOP, 5, rows[2].beat_at)


def test_those_that_die_long_after_another_one_are_no_loop_with_it() -> None:
    """It had been killed 26 minutes before, and what began then "replaced" it."""
    [found] = in_processes(line((90, 27), (2, 1.9), (1.8, 1.7), (1.6, 1.5), last=1), NOW)
    over = line((50, 27), (26.9, 26.8), (26.7, 26.6), last=1)

    assert (found.code, found.count) == (Code.CRASH_LOOP, 3)
    assert codes(list(in_processes(over, NOW))) == ["CRASH_LOOP_OVER"]


def test_a_loop_that_nobody_restarts_is_over_if_others_read_its_queues() -> None:
    """Three were killed one after another, and 17 minutes later they died "again and again", in red."""
    rows, other = line((50, 23), (22.9, 20), (19.9, 17)), process(8, queues=["a"], started_at=ago(hours=1))

    assert list(in_processes([*rows, other], NOW)) == []
    assert codes(list(in_processes(rows, NOW))) == ["CRASH_LOOP"]
    just_now = line((20, 13), (12.9, 10), (9.9, 7))
    assert codes(list(in_processes([*just_now, other], NOW))) == ["CRASH_LOOP"]


HELD = {"queue": "pay", "message_id": "m-1"}
END_IT = "End one that hangs before it goes on, or they may be handled twice."
VANISHED: list[tuple[ConsumerProcess, str]] = [
    (process(1, 64), ""),
    (process(1, 64, in_flight=[HELD], unlisted=9), f" 10 messages were in flight. {END_IT}"),
]


@pytest.mark.parametrize(("row", "said"), VANISHED)
def test_what_a_vanished_process_had_in_hand_is_told(row: ConsumerProcess, said: str) -> None:
    """Four payments were made twice by one that was frozen: who should have ended it read that on another page."""
    row.queues = ["pay"]
    [found] = in_processes([row], NOW)

    assert (found.code, found.why) == (Code.VANISHED, f"It was killed, hangs, or cannot reach the database.{said}")
    assert found.untold_since is None


STUCK: list[tuple[list[ConsumerProcess], str]] = [
    ([process(1, stuck_at=ago(seconds=20))], ""),
    ([process(1, stuck_at=ago(minutes=4), stopping=True)], ""),
    (
        [process(1, stuck_at=ago(minutes=4)), process(2)],
        "1 consumer is stuck for 4 min, with handlers beyond their deadline in all threads: web:1.",
    ),
    (
        [process(1, stuck_at=ago(minutes=4)), process(2, stuck_at=ago(minutes=9))],
        "2 consumers are stuck, the first for 9 min, with handlers beyond their deadline in all threads: web:1, web:2.",
    ),
]


@pytest.mark.parametrize(("rows", "expected"), STUCK)
def test_a_process_without_a_free_thread_is_stuck(rows: list[ConsumerProcess], expected: str) -> None:
    found = [problem for problem in in_processes(rows, NOW) if problem.code is Code.STUCK]

    assert [problem.text for problem in found] == ([expected] if expected else [])


LATE = {"overdue": (OverdueRetries(queue="q", count=2, oldest=ago(minutes=12)),)}
FREE = level("q", consumers=1)
RETRIES: list[tuple[dict[str, Any], list[Level], bool]] = [
    (LATE, [FREE, level("q.retry", Role.WAITING, ready=1)], True),
    (LATE, [level("q", consumers=1, ready=9), level("q.retry", Role.WAITING)], True),
    (LATE, [level("q", consumers=1, unacked=1), level("q.retry", Role.WAITING)], True),
    (LATE, [FREE, level("q.retry", Role.WAITING)], False),
    (LATE, [FREE, level("q.retry", Role.WAITING), level("q.parked", Role.PARKED, ready=1, consumers=1)], False),
    (LATE, [FREE], True),
    (LATE, [level("r", consumers=1, ready=1)], False),
    (LATE, [], False),
    ({**LATE, "stopped": (QueueControl(queue="q", paused=True, since=NOW),)}, [level("q", ready=1)], False),
    ({**LATE, **halted(NOW)}, [level("q", consumers=1, ready=1)], False),
]


@pytest.mark.parametrize(("facts", "levels", "overdue"), RETRIES)
def test_a_retry_is_overdue_if_its_queue_may_hold_it(
    facts: dict[str, Any], levels: list[Level], overdue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "homes_of", lambda _queues: {"q.retry": "q", "q.parked": "q"})
    found = [one for one in needs(surveyed(**facts), levels) if one.code is Code.RETRIES_OVERDUE]

    assert [one.text for one in found] == ["2 retries in queue 'q' are overdue, the first for 12 min."] * overdue


def test_the_fastest_growing_groups_are_named_and_the_others_counted() -> None:
    groups = {number: ErrorGroup(pk=number, title="BankDown", last_seen=NOW) for number in range(1, 7)}
    # It has the most new messages, but the last one failed two minutes ago.
    groups[7] = ErrorGroup(pk=7, title="BankDown", last_seen=ago(minutes=2))
    newest = {1: 6, 2: 5, 3: 4, 4: 3, 5: 2, 6: 1, 7: 4000}
    found = list(in_groups(groups, Lately((), {}, newest, dict.fromkeys(newest, BEGAN)), NOW))

    assert [problem.subject for problem in found[:3]] == ["1", "2", "3"]
    assert found[0].text == f"Error group 1 grows: 6 messages since {SINCE} (BankDown)."
    assert found[3].text == "Further error groups that grow more slowly: 2."


RUNS: list[tuple[dict[str, Any], str]] = [
    ({"state": RunState.PAUSED, "wait": RunWait.GUARD}, "RUN_PAUSED Requeue run 8 paused itself: More messages"),
    ({"state": RunState.PAUSED}, "RUN_HELD Requeue run 8 has been paused for 0 s."),
    ({"state": RunState.PAUSED, "created_at": ago(hours=5)}, "RUN_HELD Requeue run 8 has been paused for 5 h."),
    # The lease of its driver had not ended as it was paused: "has been paused for -12 s".
    (
        {"state": RunState.PAUSED, "beat_at": ago(seconds=3), "leased_until": ago(seconds=-12)},
        "RUN_HELD Requeue run 8 has been paused for 3 s.",
    ),
    ({"wait": RunWait.QUEUE_DEEP, "max_depth": 3}, "RUN_WAITS Requeue run 8 waits: Nothing has been sent since "),
    ({"wait": RunWait.QUEUE_DEEP, "max_depth": 3, "sent_at": ago(seconds=9)}, ""),
    ({"wait": RunWait.QUEUE_FULL, "sent_at": ago(seconds=9)}, ""),
    ({"wait": RunWait.QUEUE_FULL, "sent_at": ago(seconds=11)}, "RUN_WAITS Requeue run 8 waits: Nothing has been sent "),
    ({"wait": RunWait.KEYS_WAIT, "sent_at": ago(seconds=11)}, ""),
    ({"wait": RunWait.NO_CONSUMER}, "RUN_WAITS Requeue run 8 waits: The rest waits for the first outcomes, and no"),
    ({"wait": RunWait.LISTING}, ""),
    ({"wait": RunWait.OUTCOMES_WAIT}, ""),
    ({"created_at": ago(hours=3)}, "RUN_IDLE Requeue run 8 has had no driver for 3 h."),
    ({"created_at": ago(hours=3), "beat_at": ago(minutes=4)}, ""),
]


@pytest.mark.parametrize(("fields", "expected"), RUNS)
def test_requeue_runs(fields: dict[str, Any], expected: str) -> None:
    common: dict[str, Any] = {"by": "ann", "state": RunState.RUNNING, "created_at": NOW, "total": 9, "sent": 2}
    found = [f"{one.code.name} {one.text}" for one in in_runs([RequeueRun(pk=8, **{**common, **fields})], NOW)]

    assert (found or [""])[0].startswith(expected)
    assert len(found) == bool(expected)


@pytest.mark.parametrize(
    ("wait", "sent", "expected"),
    [
        (RunWait.CANARY_FAILED, 2, "--resume --canary"),
        (RunWait.GUARD, 2, "--resume --canary"),
        (RunWait.GUARD, 8, "--resume --reason TEXT"),
        (RunWait.OUTCOMES_SILENT, 2, "--resume"),
        ("", 2, "--resume"),
    ],
)
def test_a_run_whose_messages_failed_is_to_be_resumed_with_a_test(wait: str, sent: int, expected: str) -> None:
    run = RequeueRun(pk=8, state=RunState.PAUSED, wait=wait, created_at=NOW, total=9, sent=sent)
    [problem] = in_runs([run], NOW)

    itself = "manage.py rmq_parked requeue-run 8"
    assert problem.fix == f"{itself} {expected}, or {itself} --stop"


HARM = """
Errors: done twice, or about to be:
    DONE_TWICE HANDLED_TWICE STILL_AT_IT VANISHED_IN_HAND
no work at all, and publishing may fail:
    BROKER_AWAY BROKER_AWAY_HERE BROKER_UNUSABLE BROKER_REFUSES BROKER_NOT_RUNNING BROKER_BLOCKS
    DATABASE_UNUSABLE UNMIGRATED
lost, dropped, or where nobody looks:
    UNRECORDED FULL DEFINITION_MISSING EXTERNAL_MISSING MISSING SEVERAL_MISSING RIGHT_LACKING POLICY_HARMS
    DIFFERS BROKER_OLD TOO_EARLY NO_OUTCOME
not consumed:
    CRASH_LOOP ALL_VANISHED ALL_DISCONNECTED ALL_UNREAD SMALL_FRAMES CARRIER_UNSUPPORTED NO_CONSUMER
    SEVERAL_UNREAD STUCK FEW_CONSUMERS
stuck:
    PARKED_MANY HALTED_LONG BREAKER_OPEN RETRIES_OVERDUE PARKED_LONG TOO_MANY_PARKED OUTBOX_FAILED OUTBOX_AWAY
    OUTBOX_OVERDUE OUTBOX_REFUSED MOVE_LEFT INTERRUPTED ABANDONED DEAD_LETTERS BLOCKED_FULL
harm nothing yet:
    NOT_DECLARABLE UNREADABLE CLOCKS_WRONG
Warnings: perhaps done twice:
    GIVEN_AGAIN HANDLED_ANYWAY PERHAPS_TWICE RUN_PERHAPS_TWICE
out of sight:
    NOT_RECORDED
not consumed, or by fewer:
    ALL_DISCONNECTED_IDLE ALL_IDLE VANISHED ENDED CRASH_LOOP_OVER LATE DISCONNECTED HELD UNREAD
stuck, or soon:
    RUN_PAUSED PARKED HALTED GROWS GROW_MORE OUTBOX_NOT_TAKEN OUTBOX_WAITS RUN_HELD RUN_WAITS RUN_IDLE
    PAUSED_LONG PAUSED BLOCKED_NEAR BACKLOG APPROVAL_WAITS
for later:
    IDLE SEVERAL_IDLE PERHAPS_STOPPED VERSIONS MANY_DEAD_LETTER_PROCESSES CLOCKS_APART BROKER_SLOW
    BROKER_UNTESTED API_FAILS
somebody is at it:
    PARKED_UNDER_WAY
Information:
    RETURNING HANDED_OVER EMPTY_KEPT EMPTY
"""
"""All that can be wrong, in the order in which pages and commands tell it."""


def test_what_harms_most_is_told_first_errors_before_warnings() -> None:
    """Paid twice stood below a queue that differs, and a full queue, which drops messages, below thirty others. A page
    that is red below something yellow is read as yellow."""
    severities = [code.value.severity for code in Code]

    assert [code.name for code in Code] == re.findall(r"\b[A-Z_]{4,}\b", HARM)
    assert severities == sorted(severities, reverse=True)
    assert [Problem(code=code).harm for code in Code] == list(range(len(Code)))


def test_a_problem_says_since_when_unless_its_rule_says_for_how_long() -> None:
    """A run that had paused itself did not say since when, because its reason named a span that was as long."""
    values = {"span": "3 min", "explanation": ": No outcome came for 3 min", "by": "", "command": "x"}
    paused, held = (Problem(code=code, since=BEGAN, values=values) for code in (Code.RUN_PAUSED, Code.RUN_HELD))
    [parked] = needs(surveyed(parked=ParkedCounts(count=1, oldest=BEGAN)), [])

    assert (paused.untold_since, held.untold_since, parked.untold_since) == (BEGAN, None, None)


def test_each_problem_has_a_consequence_and_a_repair() -> None:
    told = [code for code in Code if code.value.severity is not Severity.INFORMATION]

    assert [code for code in told if not (code.value.why and code.value.fix)] == []
    assert [code for code in told if code.value.why.startswith("As above")] == []


def test_alerts_know_a_problem_by_the_code_of_its_mildest_form() -> None:
    mildest = [(code.value, Code[code.value.known_as].value) for code in Code if code.value.known_as]

    assert len(mildest) > len({id(rule) for _, rule in mildest})
    assert [rule.severity for _, rule in mildest] == [min(one.severity, rule.severity) for one, rule in mildest]


def test_that_all_consumers_are_dead_is_one_error_even_if_all_queues_are_empty() -> None:
    dead = surveyed(processes=(process(1, 64), process(2, 90)))
    [gone] = needs(dead, [level("q"), level("r"), level("q.retry", Role.WAITING)])

    assert gone.code is Code.ALL_VANISHED
    assert gone.severity is Severity.ERROR
    assert gone.text == "No consumer is alive. Last heartbeat 1 min ago: web:1, web:2."
    assert gone.why == "2 queues stand still: q, r."


def test_consumers_are_started_only_after_the_queue_of_what_was_begun_is_paused() -> None:
    """Who did what the first line said, paid four payments a second time; the second line said to pause the queue."""
    begun = {"q": GivenAgain(begun=(), perhaps=(), waiting=("PAY-1",))}
    dead = surveyed(processes=(process(1, 64),), given_again=begun)
    gone, _again = needs(dead, [level("q", ready=1), level("r")])
    [calm] = needs(surveyed(processes=(process(1, 64),)), [level("q", ready=1), level("r")])

    pause = "First manage.py rmq_queue pause q, until you know what its lost consumers have done. "
    assert (gone.code, gone.fix) == (Code.ALL_VANISHED, f"{pause}Start manage.py rmq_consume")
    assert calm.fix == "Start manage.py rmq_consume"


def test_where_nobody_is_alive_a_paused_queue_is_marked() -> None:
    """Who started consumers, as was asked, waited for the five messages of a queue that somebody had paused."""
    dead = surveyed(processes=(process(1, 64),), **stopped(paused=True, since=NOW))
    gone = needs(dead, [level("q", ready=2), level("a b", ready=5)])[0]

    assert (gone.code, gone.why) == (Code.ALL_VANISHED, "2 queues stand still: a b 5 (paused), q 2.")


def test_where_nobody_is_alive_only_those_that_died_lately_are_named() -> None:
    old = [process(one, 86_400 * 3, queues=["mail"], started_at=ago(days=9)) for one in (3, 4)]
    [gone] = needs(surveyed(processes=(*old, process(1, 64, queues=["q"]))), [level("q"), level("r")])

    assert gone.text == "No consumer is alive. Last heartbeat 1 min ago: web:1."


def test_where_nobody_is_alive_those_that_died_last_are_named_first() -> None:
    """Three that had died four minutes before were named, and the two that died last were among "18 more"."""
    early = [process(one, 60 * (20 - one), queues=["q"], started_at=ago(hours=1)) for one in range(1, 6)]
    [gone] = needs(surveyed(processes=(*early, process(8, 40, queues=["q"]))), [level("q"), level("r")])

    assert gone.text == "No consumer is alive. Last heartbeat 40 s ago: web:8, web:5, web:4 and 3 more."


def test_dead_consumers_are_one_card_with_their_queues_and_before_what_follows_from_it() -> None:
    """Also beside a queue that is paused and one whose breaker is open, which need no consumer themselves."""
    run = RequeueRun(pk=8, by="ann", state=RunState.RUNNING, created_at=ago(hours=3), total=9, sent=2)
    dead = surveyed(
        processes=(process(1, 64),),
        runs=(run,),
        parked=ParkedCounts(count=683, oldest=NOW),
        **stopped(opened=True, opened_at=NOW),
    )
    levels = [
        *(level("a b", ready=6), level("card", ready=2), level("card.quarantine", Role.QUARANTINE, ready=1)),
        *(level("mail"), level("mail.parked", Role.PARKED, ready=3)),
    ]
    [gone, parked, breaker] = needs(dead, levels)

    assert [gone.code, parked.code, breaker.code] == [Code.ALL_VANISHED, Code.PARKED_MANY, Code.BREAKER_OPEN]
    assert gone.text == "No consumer is alive. 9 messages wait. Last heartbeat 1 min ago: web:1."
    assert gone.why == "3 queues stand still: a b 6, card 3, mail 0."


def test_what_waits_without_a_consumer_is_counted_before_anything_is_named() -> None:
    """The card of the index said "payments.capture: no consumer reads this queue", and the only number on it was
    "Nothing is parked."."""
    rows = (process(1, queues=["mail"]),)
    levels = [level("mail", consumers=1), level("pay", ready=1204)]
    [one] = needs(surveyed(processes=rows), levels)
    [several] = needs(surveyed(processes=rows), [level("kyc", ready=1), *levels, level("a"), level("b")])

    assert (one.text, one.why) == ("Queue 'pay' has no consumer. 1,204 messages wait.", "New ones wait, too.")
    assert several.text == "4 queues have no consumer. 1,205 messages wait. Nobody reads pay 1,204, kyc 1, a 0, b 0."
    assert several.why == "New ones wait, too."


def test_what_follows_from_dead_consumers_is_folded_under_them_and_no_alert_of_its_own() -> None:
    """Thirteen findings had one cause: overdue retries of each queue, the outbox, and each vanished process."""
    late = tuple(OverdueRetries(queue=queue, count=2, oldest=ago(minutes=12)) for queue in ("q", "r"))
    overdue = PendingRows(waiting=3, oldest=ago(minutes=9))
    levels = (level("q", ready=6), level("r", ready=2))
    dead = surveyed(processes=(process(1, 64, queues=["q", "r"]),), overdue=late, outbox=overdue)
    health = Health(survey=dead, gauged=Gauged(levels=levels, api_set=True))
    cause, *rest = health.needs

    assert (cause.code, cause.causes) == (Code.ALL_VANISHED, ("q", "r"))
    assert codes(rest) == codes(health.followers(cause)) == ["RETRIES_OVERDUE", "RETRIES_OVERDUE", "OUTBOX_OVERDUE"]
    assert set(codes(health.absorbed)) == {"NO_CONSUMER", "VANISHED"}


def test_queues_that_only_the_vanished_process_read_are_one_finding_with_it_folded_below() -> None:
    late = (OverdueRetries(queue="q", count=2, oldest=ago(minutes=12)),)
    levels = (level("q", ready=6, unacked=4), level("r"), level("mail", consumers=1))
    some = surveyed(processes=(process(1, 64, queues=["q", "r"]), process(2, queues=["mail"])), overdue=late)
    health = Health(survey=some, gauged=Gauged(levels=levels, api_set=True))
    cause, *rest = health.needs

    assert cause.text == "2 queues have no consumer. 6 messages wait. Nobody reads q 6, r 0."
    assert cause.why == "New ones wait, too."
    assert codes(rest) == codes(health.following) == ["RETRIES_OVERDUE", "VANISHED", "HELD"]
    missed = surveyed(processes=(process(1, 64, queues=["mail"]), process(2, queues=["mail"])))
    assert codes(Health(survey=missed, gauged=health.gauged).following) == ["HELD"]
    some.processes[0].in_flight = [HELD]
    assert codes(Health(survey=some, gauged=health.gauged).following) == ["RETRIES_OVERDUE", "HELD"]


NOBODY: list[tuple[dict[str, Any], list[Level], list[str]]] = [
    ({}, [level("q"), level("r")], ["ALL_IDLE"]),
    ({}, [level("q")], ["IDLE"]),
    ({}, [level("q", ready=1), level("r")], ["ALL_UNREAD"]),
    ({}, [level("q", consumers=1), level("r")], ["IDLE"]),
    ({}, [level("q", consumers=1), level("r"), level("s"), level("t", ready=1)], ["SEVERAL_UNREAD"]),
    ({}, [level("q", consumers=1), level("r", ready=1)], ["NO_CONSUMER"]),
    ({"processes": (process(1, 64), process(2))}, [level("q", consumers=1)], ["VANISHED"]),
    ({"processes": (process(1, 64), process(2))}, [level("q"), level("r")], ["VANISHED", "SEVERAL_IDLE"]),
    (stopped(paused=True, since=NOW), [level("a b", ready=9)], ["PAUSED"]),
    # "1 queue has no consumer" stood there while none was running: the paused one has none either.
    (stopped(paused=True, since=NOW), [level("a b", ready=9), level("q")], ["ALL_UNREAD", "PAUSED"]),
    (
        stopped(paused=True, since=NOW) | {"processes": (process(1, 3, queues=["a b"]),)},
        [level("a b"), level("q"), level("r")],
        ["PAUSED", "SEVERAL_IDLE"],
    ),
    ({}, [], []),
    ({}, [replace(level(name), missing=True, ready=None) for name in ("q", "r", "s", "t")], ["SEVERAL_MISSING"]),
    ({}, [level("q", consumers=1), level("q.retry", Role.WAITING, ready=4)], []),
    ({}, [level("q", consumers=1), level("old", abandoned=True)], []),
    ({"outbox_answers": False}, [], ["OUTBOX_AWAY"]),
    ({"parked": ParkedCounts(count=1, oldest=NOW), "apart": timedelta(minutes=6)}, [], ["CLOCKS_WRONG", "PARKED"]),
]


@pytest.mark.parametrize(("facts", "levels", "expected"), NOBODY)
def test_what_needs_somebody_now_comes_in_the_order_of_harm(
    facts: dict[str, Any], levels: list[Level], expected: list[str]
) -> None:
    assert codes(needs(surveyed(**facts), levels)) == expected


LATE_ENTRY = {"queue": "q", "handler": "statements.render", "count": 2, "timeout": 120.0, "ends_after": 240.0}


def test_a_handler_beyond_its_deadline_is_a_finding_and_its_queue_is_not_ok() -> None:
    """Live status said "Fine: 1 queue is empty", and support's queues "OK"."""
    known = surveyed(processes=(process(1, late=[LATE_ENTRY]), process(2)))
    health = Health(survey=known, gauged=Gauged(levels=(level("q", consumers=2, unacked=2),), api_set=True))
    [late] = health.needs

    assert late.text == "2 messages of statements.render run beyond their deadline of 2 min on web:1."
    assert late.why == "A process whose handler still runs after 4 min exits, and the attempt has failed."
    [judged] = health.judged
    assert judged.remark == "2 messages are in their handlers beyond the deadline of 2 min"
    assert Condition.of([judged], stopped=False, halt=None) is Condition.NOTED


def test_late_handlers_of_several_processes_are_one_finding_of_their_queue_also_without_the_broker() -> None:
    one, gone = {**LATE_ENTRY, "count": 1}, process(4, 90, late=[LATE_ENTRY])
    ended = process(5, 20, late=[LATE_ENTRY], stopping=True, ended_at=ago(seconds=20), fault="exit 1: hung")
    rows = (process(1, late=[LATE_ENTRY]), process(2, late=[one], stopping=True), gone, ended)
    [late] = [found for found in needs(surveyed(processes=rows), []) if found.code is Code.LATE]

    assert late.text == "3 messages of statements.render run beyond their deadline of 2 min on web:1, web:2."


FAULT = "exit 1: Handler statements.render did not end within twice its timeout. It is at bank.py:9 (render)."


def test_that_no_consumer_is_alive_is_told_with_the_newest_sign_of_all_also_of_a_stopping_one() -> None:
    """It named one that vanished 13 minutes ago, while another one was stopping and had a heartbeat of 4 s ago."""
    old = process(4868, 780)
    [stopping] = needs(surveyed(processes=(old, process(27504, 4, stopping=True))), [level("q"), level("r")])
    assert stopping.text == "No consumer is alive. Last heartbeat 4 s ago: web:27504 (stopping), web:4868."

    end = {"stopping": True, "ended_at": ago(seconds=20), "fault": FAULT}
    two = process(4867, 20, **end), process(4868, 50, **end)
    [ended] = needs(surveyed(processes=(*two, process(4869, 60))), [level("q"), level("r")])
    assert ended.code is Code.ALL_VANISHED
    assert ended.text == (
        "No consumer is alive. Last heartbeat 20 s ago: web:4867, web:4868, web:4869. 2 ended (exit 1: Handler "
        "statements.render did not end within twice its timeout), 1 vanished."
    )


def test_a_consumer_that_ended_with_a_fault_is_told_with_it_and_is_not_one_that_may_hang() -> None:
    """Two that had said why they ended were "without a heartbeat", with the same 200 characters twice."""
    end = {"stopping": True, "ended_at": ago(seconds=40), "fault": FAULT}
    rows = (
        process(1),
        process(2, 40, **end),
        process(3, 50, **{**end, "ended_at": ago(seconds=50)}, in_flight=[HELD]),
        process(4, 60),
    )
    [ended, vanished] = in_processes(rows, NOW)

    assert ended.code is Code.ENDED
    assert ended.text == (
        "2 of 4 consumers have ended: exit 1: Handler statements.render did not end within twice its timeout "
        "(web:2, 40 s ago; web:3, 50 s ago)."
    )
    assert ended.why == "Fewer run than before. 1 message was in flight."
    assert vanished.text == "1 of 4 consumers without a heartbeat for 30 s: web:4 (1 min ago)."


CUT_OFF: list[tuple[list[Level], str]] = [
    ([level("q"), level("r", ready=3)], "ALL_DISCONNECTED"),
    ([level("q", ready=3)], "ALL_DISCONNECTED"),
    ([level("q"), level("r")], "ALL_DISCONNECTED_IDLE"),
    ([level("q")], "ALL_DISCONNECTED_IDLE"),
    ([level("q"), level("r", consumers=1)], "DISCONNECTED"),
]


@pytest.mark.parametrize(("levels", "code"), CUT_OFF)
def test_consumers_that_run_without_the_broker_are_one_finding(levels: list[Level], code: str) -> None:
    """ "No consumer is running" stood above "Without a connection to the broker: vm:1762", which ran."""
    rows = process(1, connected=False, lost_at=ago(minutes=3)), process(2, connected=False, lost_at=ago(minutes=2))
    told = [one for one in needs(surveyed(processes=rows), levels) if one.code is not Code.IDLE]

    assert codes(told) == [code]
    if code != "DISCONNECTED":
        waits = " 3 messages wait." if code == "ALL_DISCONNECTED" else ""
        assert told[0].text == (
            f"No consumer has reached the broker for 3 min.{waits} Without a connection: web:1, web:2."
        )


def test_one_consumer_without_the_broker_beside_one_that_has_it_is_no_outage() -> None:
    rows = process(1, connected=False, lost_at=ago(minutes=3)), process(2)

    found = needs(surveyed(processes=rows), [level("q"), level("r", ready=2)])

    # "No consumer is running" stood above the table in which one was.
    assert codes(found) == ["SEVERAL_UNREAD", "DISCONNECTED"]


def test_an_overdue_outbox_names_the_brokers_answer() -> None:
    """It told an operator to start a consumer that ran, of a row to which the broker had answered ten times."""
    waiting = PendingRows(waiting=1, oldest=ago(minutes=11), answer="312 NO_ROUTE", answer_key="bank.pay")
    [refused] = needs(surveyed(outbox=waiting), [])

    assert refused.code is Code.OUTBOX_REFUSED
    assert refused.why == "The broker did not take it to queue 'bank.pay': 312 NO_ROUTE."
    assert "rmq_consume" not in refused.fix


@pytest.mark.django_db
@pytest.mark.database
def test_a_message_that_the_broker_has_refused_is_told_at_once() -> None:
    """It was told after five minutes, and its queue could have been declared in the first of them."""
    error = "exchange 'bank' does not exist"
    to_bank = {"exchange": "bank", "routing_key": "pay"}
    made.outgoing(created_at=ago(seconds=3), failed_at=None, attempts=1, error=error, **to_bank)
    made.outgoing(created_at=ago(seconds=3), failed_at=None, error="")
    [refused] = needs(surveyed(outbox=facts.outbox()), [])

    assert (refused.code, refused.severity) == (Code.OUTBOX_NOT_TAKEN, Severity.WARNING)
    assert refused.text == "The broker has refused 1 message of the outbox."
    to = "exchange 'bank' with routing key 'pay'"
    assert refused.why == f"The broker did not take it to {to}: exchange 'bank' does not exist."
    assert "rmq_declare" in refused.fix


@pytest.mark.django_db
@pytest.mark.database
def test_what_waits_behind_a_failed_row_of_its_key_is_not_said_to_lack_a_relay() -> None:
    """Two waited behind one that had failed, and "none runs, or the broker refuses the message" was said of them."""
    made.outgoing(order_key="account:7", failed_at=ago(minutes=12))
    for _ in range(2):
        made.outgoing(order_key="account:7", created_at=ago(minutes=12), failed_at=None, error="")
    [failed] = needs(surveyed(outbox=OutboxMessage.objects.all().pending()), [])
    made.outgoing(order_key="account:8", created_at=ago(minutes=12), failed_at=None, error="")
    _failed, overdue = needs(surveyed(outbox=OutboxMessage.objects.all().pending()), [])

    assert failed.code is Code.OUTBOX_FAILED
    assert failed.why.endswith(" 2 more wait for a failed one with their ordering key.")
    assert overdue.text == "1 message in the outbox not sent, the oldest for 12 min."


def test_failed_messages_of_the_outbox_say_what_can_be_done_for_them() -> None:
    """ "The broker can never accept them" stood above messages that were delivered once their queue was declared."""
    facts: dict[str, Any] = {"failed": 2, "failed_since": NOW, "failed_first": "PAY-7", "failed_key": "pay"}
    [unrouted] = needs(surveyed(outbox=PendingRows(**facts, failed_answer="312 NO_ROUTE", untaken=2)), [])
    [large] = needs(surveyed(outbox=PendingRows(**facts, failed_answer="200 bytes are above 100.", untaken=1)), [])
    elsewhere = {**facts, "failed": 1, "failed_exchange": "bank", "untaken": 1}
    [alone] = needs(surveyed(outbox=PendingRows(**elsewhere, failed_answer="312 NO_ROUTE")), [])

    assert unrouted.why == (
        "No queue took them (312 NO_ROUTE), the oldest is PAY-7 to queue 'pay'. "
        "They wait until somebody sends them again, once their queues are declared."
    )
    assert large.why == (
        "The broker did not take the oldest of them, PAY-7 to queue 'pay': 200 bytes are above 100. "
        "They wait until somebody sends them again or discards them."
    )
    assert alone.why == (
        "No queue took PAY-7 to exchange 'bank' with routing key 'pay' (312 NO_ROUTE). "
        "It waits until somebody sends it again, once its queue is declared."
    )


def test_a_halted_queue_says_how_many_messages_wait() -> None:
    [found] = needs(surveyed(**halted(NOW)), [level(ready=19, consumers=1)])

    assert found.why.endswith("until its first message succeeds. 19 messages wait.")


@pytest.mark.parametrize(("key", "named"), [("PAY-1", "PAY-1"), ("", "9f3c-1")])
def test_a_halted_queue_names_the_message_that_all_others_wait_for(key: str, named: str) -> None:
    """It was named by a button only: a mail, and who read it after the queue had gone on, did not know which it was."""
    facts = halted(NOW)
    facts["halted"][0].halted_message, facts["halted"][0].halted_key = "9f3c-1", key
    [found] = needs(surveyed(**facts), [])

    assert found.why.endswith(f"all later messages wait until its first message ({named}) succeeds.")


def test_a_broker_that_only_this_host_has_lost_is_not_said_to_stop_the_handlers() -> None:
    """ "No handler runs" stood on the host of the pages, while the consumers of another host handled refunds."""
    away = unreachable(BrokerUnreachable("amqp://broker", "proxy:5672: it closed the connection"))
    [here] = Health(survey=surveyed(processes=(process(1, 3), process(2, 200))), away=away).needs[:1]
    [lost] = Health(survey=surveyed(processes=(process(1, 3, connected=False),)), away=away).needs[:1]
    [dead] = Health(survey=surveyed(processes=(process(2, 200),)), away=away).needs[:1]

    assert here.text == ("This host cannot reach the broker at amqp://broker: proxy:5672: it closed the connection.")
    assert here.why.startswith("1 consumer has its connection, by its heartbeat 3 s ago. Messages published on this")
    assert [lost.code, dead.code] == [Code.BROKER_AWAY, Code.BROKER_AWAY]
    assert lost.why.startswith("No handler runs.")


def test_while_the_broker_is_away_what_waits_in_the_outbox_is_counted_at_once() -> None:
    away = Problem(code=Code.BROKER_NOT_RUNNING)
    waiting = surveyed(outbox=PendingRows(waiting=3, oldest=ago(seconds=20)))
    health = Health(survey=waiting, away=away)

    assert [one.text for one in health.following] == ["3 messages wait in the outbox."]
    assert needs(waiting, []) == ()
    overdue = surveyed(outbox=PendingRows(waiting=3, oldest=ago(minutes=20)))
    assert codes(Health(survey=overdue, away=away).following) == ["OUTBOX_OVERDUE"]


def test_messages_that_the_broker_refused_before_it_went_away_are_not_promised_to_be_sent() -> None:
    """Four messages to a queue that did not exist were "sent once the broker is back", and failed 9 min later."""
    waiting = PendingRows(waiting=5, refused=4, oldest=ago(seconds=20), answer="312 NO_ROUTE", answer_key="pay")
    [found] = Health(survey=surveyed(outbox=waiting), away=Problem(code=Code.BROKER_NOT_RUNNING)).needs[1:]

    assert found.text == "The broker has refused 4 messages of the outbox."
    assert found.why == "The broker did not take the oldest of them to queue 'pay': 312 NO_ROUTE."
    assert "rmq_declare" in found.fix


@pytest.mark.django_db
def test_a_run_that_handled_messages_twice_is_a_finding_until_a_day_after_its_end() -> None:
    """It ended as "✓ Finished", and only its own page said that three payments were made twice."""
    fields: dict[str, Any] = {"state": RunState.FINISHED, "created_at": ago(days=3), "by": "ann", "total": 9}
    lately = RequeueRun.objects.create(**fields, handled_twice=3, finished_at=ago(hours=23))
    RequeueRun.objects.create(**fields, handled_twice=3, finished_at=ago(hours=25))
    RequeueRun.objects.create(**fields, finished_at=NOW)
    [found] = [one for one in needs(survey(), []) if one.code is Code.HANDLED_TWICE]

    assert found.text == f"Requeue run {lately.pk}: at least 3 messages were handled twice."
    assert found.fix.startswith(f"manage.py rmq_parked checked HANDLED_TWICE --run {lately.pk} lists them; ")
    assert found.severity is Severity.ERROR
    assert found.why.endswith(f" This stays here until {minute(ago(hours=23) + timedelta(days=1))}.")
    RequeueRun.objects.filter(pk=lately.pk).update(state=RunState.RUNNING, finished_at=None)
    [running] = [one for one in needs(survey(), []) if one.code is Code.HANDLED_TWICE]
    assert running.why.endswith(" This stays here until a day after the run has ended.")
