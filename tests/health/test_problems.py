"""The rules of health as one table: these facts are these problems, and no others."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from django.utils.translation import override

from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.health import problems
from django_rmq_retry.health.condition import Condition
from django_rmq_retry.health.facts import (
    BlockedCounts,
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
    too_many_parked,
)
from django_rmq_retry.health.processes import unreplaced
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.models import ConsumerProcess, ErrorGroup, QueueControl, RequeueRun, RunState, RunWait
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.parked.groups import Lately
from django_rmq_retry.topology import QueueDeclaration, Role
from django_rmq_retry.topology.declarations import Server
from django_rmq_retry.topology.plan import Difference, Item, Plan, PlanState
from django_rmq_retry.wording import minute

NOW = timezone.now()
BEGAN = NOW - timedelta(minutes=3)
SINCE = minute(BEGAN)
STRICT = Limits(min_consumers=2, max_ready=10)


def ago(**span: float) -> Any:
    return NOW - timedelta(**span)


def level(name: str = "q", role: Role = Role.WORK, *, ready: int = 0, consumers: int = 0, **facts: Any) -> Level:
    return Level(queue=name, role=role, ready=ready, consumers=consumers, **facts)


def needs(survey: Survey, levels: Iterable[Level]) -> tuple[Problem, ...]:
    return Health(survey=survey, gauged=Gauged(levels=tuple(levels), api_set=True)).needs


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


def surveyed(**facts: Any) -> Survey:
    nothing = {"parked": ParkedCounts(), "outbox": PendingRows(), "blocked": BlockedCounts()}
    return Survey(alias="default", at=NOW, seconds=0.001, **{**nothing, **facts})


def stopped(**fields: Any) -> dict[str, Any]:
    return {"stopped": (QueueControl(queue="a b", **fields),)}


def test_a_pause_says_until_when() -> None:
    [held] = needs(surveyed(**stopped(paused=True, since=ago(hours=5), until=ago(hours=-1))), [])
    [open_ended] = needs(surveyed(**stopped(paused=True, since=NOW)), [])

    assert held.why.startswith("Its messages wait. It resumes automatically at ")
    assert held.why.endswith(". A pause of more than 4 h may be forgotten.")
    assert open_ended.why == "Its messages wait until it is resumed."


def halted(at: Any) -> dict[str, Any]:
    return {"halted": (QueueControl(queue="q", halted_at=at, halted_attempt=7, halted_error="NotCovered."),)}


GATEWAY = LargestCause(
    title="GatewayTimeout",
    count=4000,
    places={"transfer": 2000, "card": 2000},
    only=None,
    newest=9,
    newest_since=BEGAN,
    again=0,
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
            "PARKED_MANY 4,712 messages parked: 4,000 GatewayTimeout, growing.",
        ],
    ),
    (
        {
            "parked": ParkedCounts(count=4712, oldest=ago(hours=3)),
            "cause": replace(GATEWAY, last_new=None, last_seen=ago(minutes=2)),
        },
        [f"PARKED_MANY 4,712 messages parked: 4,000 GatewayTimeout, +9 since {SINCE}, none for 2"],
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

    assert found.why == (
        "In transfer 2,000, card 2,000. 712 in 11 other error groups. The oldest 3 h ago. Requeue run 8 is to send 300 "
        "of them. 7 more wait behind blocked keys. Each waits for an operator, and so many at once have a cause that "
        "somebody has to find."
    )


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
        process(3, 95, deploy="v0"),
        process(1, deploy="v1"),
        process(2, 30, deploy="v2", connected=False),
    ]

    assert [problem.text for problem in in_processes(rows, NOW)] == [
        "1 consumer without a heartbeat for 30 s: web:3 (1 min ago).",
        "Consumers run 2 versions of the project: v1 (1), v2 (1).",
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
        "2 consumers without a heartbeat for 30 s: web:2 (7 min ago), web:3 (6 min ago)."
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
    (line((90, 20), (19, 10), (9, 5), last=4), ["web:1", "web:2", "web:3"]),
    (line((90, 20), (19, 10), (9, 5)), ["web:1", "web:2", "web:3"]),
    (line((190, 60), (59, 40), (39, 20), (19, 10), last=9), []),
    # It has read another queue, so nobody has taken it over.
    ([process(5, 60 * 30, queues=["a", "b"]), *line((90, 20), (19, 10), last=9)], ["web:5"]),
    # Two died at once, and two came after them, of which one died.
    ([process(5, 60 * 20, queues=["a"]), *line((90, 20), (19, 10), last=9)], ["web:2"]),
]


@pytest.mark.parametrize(("rows", "named"), LINES)
def test_a_process_whose_replacement_died_too_is_replaced_by_the_next_but_a_crash_loop_warns(
    rows: list[ConsumerProcess], named: list[str]
) -> None:
    assert sorted(map(str, unreplaced(rows, NOW))) == named


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
    ({"wait": RunWait.QUEUE_DEEP}, "RUN_WAITS Requeue run 8 waits: The queue holds more messages"),
    ({"wait": RunWait.LISTING}, ""),
    ({"created_at": ago(hours=3)}, "RUN_IDLE Requeue run 8 has had no driver for 3 h."),
    ({"created_at": ago(hours=3), "beat_at": ago(minutes=4)}, ""),
]


@pytest.mark.parametrize(("fields", "expected"), RUNS)
def test_requeue_runs(fields: dict[str, Any], expected: str) -> None:
    common: dict[str, Any] = {"by": "ann", "state": RunState.RUNNING, "created_at": NOW, "total": 9, "sent": 2}
    found = [f"{one.code.name} {one.text}" for one in in_runs([RequeueRun(pk=8, **{**common, **fields})], NOW)]

    assert (found or [""])[0].startswith(expected)
    assert len(found) == bool(expected)


def test_what_was_handled_twice_comes_before_all_errors_and_errors_before_warnings() -> None:
    """Money may have moved twice, and it does harm until somebody looks, whatever else is wrong."""
    first, *others = Code
    severities = [code.value.severity for code in others]

    assert first is Code.HANDLED_TWICE
    assert [Problem(code=code).harm for code in (first, Code.BROKER_AWAY, Code.EMPTY)] == [0, 1, len(Code) - 1]
    assert severities == sorted(severities, reverse=True)
    assert max(Severity) is Severity.ERROR


def test_a_problem_says_since_when_unless_its_rule_says_for_how_long() -> None:
    """A run that had paused itself did not say since when, because its reason named a span that was as long."""
    values = {"span": "3 min", "explanation": ": No outcome came for 3 min", "command": "x"}
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
    assert gone.why == "2 queues stand still, 0 messages ready."


def test_where_nobody_is_alive_only_those_that_died_lately_are_named() -> None:
    old = [process(one, 86_400 * 3, queues=["mail"], started_at=ago(days=9)) for one in (3, 4)]
    [gone] = needs(surveyed(processes=(*old, process(1, 64, queues=["q"]))), [level("q"), level("r")])

    assert gone.text == "No consumer is alive. Last heartbeat 1 min ago: web:1."


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
    assert gone.why == "3 queues stand still, 8 messages ready: a b 6, card 2."


NOBODY: list[tuple[dict[str, Any], list[Level], list[str]]] = [
    ({}, [level("q"), level("r")], ["ALL_IDLE"]),
    ({}, [level("q")], ["IDLE"]),
    ({}, [level("q", ready=1), level("r")], ["ALL_UNREAD"]),
    ({}, [level("q", consumers=1), level("r")], ["IDLE"]),
    ({}, [level("q", consumers=1), level("r"), level("s"), level("t", ready=1)], ["NO_CONSUMER", "SEVERAL_IDLE"]),
    ({}, [level("q", consumers=1), level("r", ready=1)], ["NO_CONSUMER"]),
    ({"processes": (process(1, 64), process(2))}, [level("q", consumers=1)], ["VANISHED"]),
    ({"processes": (process(1, 64), process(2))}, [level("q"), level("r")], ["ALL_IDLE", "VANISHED"]),
    (stopped(paused=True, since=NOW), [level("a b", ready=9)], ["PAUSED"]),
    ({}, [], []),
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
    [ended] = needs(surveyed(processes=(process(4867, 20, **end),)), [level("q"), level("r")])
    assert ended.code is Code.ALL_VANISHED
    assert ended.text == (
        "No consumer is alive. Last heartbeat 20 s ago: web:4867 (ended: exit 1: Handler statements.render did not "
        "end within twice its timeout)."
    )


def test_a_consumer_that_ended_with_a_fault_beside_living_ones_says_so() -> None:
    end = {"stopping": True, "ended_at": ago(seconds=40), "fault": FAULT}
    [found] = in_processes([process(1), process(2, 40, **end)], NOW)

    assert found.text == (
        "1 consumer without a heartbeat for 30 s: web:2 (ended 40 s ago: exit 1: Handler statements.render did not "
        "end within twice its timeout)."
    )


def test_an_overdue_outbox_names_the_brokers_answer() -> None:
    """It told an operator to start a consumer that ran, of a row to which the broker had answered ten times."""
    waiting = PendingRows(waiting=1, oldest=ago(minutes=11), answer="312 NO_ROUTE")
    [refused] = needs(surveyed(outbox=waiting), [])

    assert refused.code is Code.OUTBOX_REFUSED
    assert refused.why == "The broker did not take the oldest of them: 312 NO_ROUTE."
    assert "rmq_consume" not in refused.fix


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
    waiting = PendingRows(waiting=4, oldest=ago(seconds=20), answer="312 NO_ROUTE")
    [found] = Health(survey=surveyed(outbox=waiting), away=Problem(code=Code.BROKER_NOT_RUNNING)).needs[1:]

    assert found.text == "4 messages wait in the outbox."
    assert found.why == "The broker did not take the oldest of them: 312 NO_ROUTE."
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
    assert found.fix == f"manage.py rmq_parked list --handled-twice-of-run {lately.pk}"
    assert found.severity is Severity.WARNING
