"""``rmq_parked checked``: show a finding that only records a doubt, and end it."""

from collections.abc import Callable, Sequence
from shlex import quote

from django.core.management.base import CommandParser

from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.doubts import (
    CHECKABLE,
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
from django_rmq_retry.management.command import Options, RmqCommand, add_yes, usage_error
from django_rmq_retry.management.parked_views import begun_data
from django_rmq_retry.management.terminal import clock
from django_rmq_retry.parked.operators import Actor


def add_arguments(add: Callable[..., CommandParser]) -> None:
    about = (
        "show what a finding is about; with --reason, say that it was checked, and it ends until something new comes"
    )
    checking = add("checked", end_doubt, help=about)
    codes = [one.name for one in CHECKABLE]
    checking.add_argument("code", choices=codes, metavar="CODE", help=f"one of {', '.join(codes)}")
    checking.add_argument("--run", default="", metavar="N", help="the requeue run, or the queues of a crash loop")
    only = "only this one of what is listed: its key, message id, record or process; repeatable"
    checking.add_argument("--only", action="append", default=[], metavar="NAME", help=only)
    checking.add_argument("--reason", help="the reason, kept in the audit log")
    add_yes(checking)


def end_doubt(command: RmqCommand, options: Options) -> Exit:
    found = doubts_of(options["code"])
    runs = [options["run"]] if options["run"] else list(found)
    if len(runs) > 1:
        raise usage_error(f"Several have this finding: {'; '.join(runs)}. Pass --run.")
    chosen = found.get(runs[0]) if runs else None
    if chosen and options["only"]:
        chosen = _only(chosen, options["only"])
    if options["json"]:
        each = doubted(chosen) if chosen else []
        command.document("parked_checked/1", finding=options["code"], items=[_data(one) for one in each])
    elif chosen:
        _show(command, chosen)
    else:
        command.say("There is no such finding.")
    if chosen is None:
        return Exit.NOTHING
    ended = chosen.code is Code.VANISHED_IN_HAND
    if options["reason"] is None:
        once = "Once you know that it has ended" if ended else "Once you have checked all of this"
        names = [f" --only {quote(name)}" for name in options["only"]]
        names += [f" --run {quote(chosen.subject)}"] if chosen.code in (*OF_RUNS, *LOOPS) else []
        command.say(f"{once}: manage.py rmq_parked checked {chosen.code.name}{''.join(names)} --reason TEXT")
        if len(chosen.doubts) > 1:
            command.say("Of some of it: add --only NAME for each; the rest stays a finding.")
        return Exit.DONE
    command.confirm("Has it ended?" if ended else "Was all of this checked?", yes=options["yes"])
    check(chosen, Actor.of_shell(), reason=options["reason"])
    command.say("This is in the audit log, with your reason. What comes later is told again.")
    return Exit.DONE


def _only(found: Problem, names: Sequence[str]) -> Problem:
    """Return the part of a finding with these names."""
    if found.code in (*OF_RUNS, *LOOPS):
        raise usage_error("A requeue run or a crash loop is checked as a whole, without --only.")
    each = doubted(found)
    for name in names:
        if not any(name in one.names for one in each):
            raise usage_error(f"{name} is not among them: manage.py rmq_parked checked {found.code.name}")
    return part_of(found, {one.mark for one in each if one.names & {*names}})


def _show(command: RmqCommand, found: Problem) -> None:
    terminal = command.stdout.isatty()
    command.say(found.text)
    command.say(f"  {found.why}")
    if found.code is Code.VANISHED_IN_HAND:
        command.say("  To end it: kill -9 on its host, or delete its container.")
    rows = [(one, clock(one.at, terminal=terminal)) for one in doubted(found)]
    if found.code in OF_PROCESSES:
        command.table([("PROCESS", "LAST HEARTBEAT"), *((one.name, at) for one, at in rows)])
    elif rows:
        cells = [(one.name or "-", one.record.pk if one.record else "-", one.word, at) for one, at in rows]
        table: list[tuple[object, ...]] = [("MESSAGE", "RECORD", "IN DOUBT", "HANDLED"), *cells]
        if any(one.before for one, _at in rows):
            before = ("FIRST CONSUMER", *(_before(one) for one, _at in rows))
            table = [(*line, cell) for line, cell in zip(table, before, strict=True)]
        command.table(table)


def _before(one: Doubted) -> str:
    """Return who had begun it before it was handled: the finding tells these from those that were only given."""
    begun = f"{', '.join(map(str, one.begun))} had begun it"
    return begun if one.begun else "may not have begun it" if one.before else "-"


def _data(one: Doubted) -> dict[str, object]:
    record = one.record.pk if one.record else None
    at = clock(one.at, terminal=False)
    return {"name": one.name, "record": record, "finding": one.code.name, "at": at, "begun": begun_data(one.begun)}
