"""``rmq_parked``: requeue messages, and list, follow and control requeue runs."""

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry import database_clock
from django_rmq_retry.arguments import plural
from django_rmq_retry.breakers import table
from django_rmq_retry.breakers.queue_state import QueueState
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.doubts import checks_of_runs
from django_rmq_retry.health.held import leave_out_unfounded
from django_rmq_retry.health.problems import excused
from django_rmq_retry.health.processes import read_if_open
from django_rmq_retry.management.accounts import actor_of, add_user
from django_rmq_retry.management.arguments import add_limit
from django_rmq_retry.management.command import Options, RmqCommand, add_yes
from django_rmq_retry.management.parked_choice import (
    OPEN_STATES,
    add_act,
    add_choice,
    confirm_number,
    counts_beside,
    lists_data,
    place_data,
    reason_for,
    refuse_doubtful,
    report_keys,
    selection_of,
    token_of,
)
from django_rmq_retry.management.terminal import clock, local, utc
from django_rmq_retry.models import ItemState, RequeueRun, RunState
from django_rmq_retry.models.runs import ACTIVE, HELD, MIN_OUTCOMES, STOOD_STILL
from django_rmq_retry.parked import run_steering
from django_rmq_retry.parked.checked import checked_in_words
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.early_outcomes import HANDLED_TWICE, PERHAPS_TWICE
from django_rmq_retry.parked.findings import (
    DECIDED,
    INCLUDABLE,
    RequeueFinding,
    RequeueReport,
    lacks_reason_for_risk,
    report,
)
from django_rmq_retry.parked.held_up import held_up, in_few_words, stands, waiting_in
from django_rmq_retry.parked.items import unsent_when_stopped
from django_rmq_retry.parked.lease import DRIVEN
from django_rmq_retry.parked.operators import Actor, Refused, lacks_reason
from django_rmq_retry.parked.outcome_texts import decisions_on
from django_rmq_retry.parked.pace import measured_rate
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.requeue_options import DEFAULT_RATE, STOP_AT, RequeueOptions, checked_target
from django_rmq_retry.parked.run_steps import RunSteps
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import early_lines, run_lines
from django_rmq_retry.parked.twins import Twins, each, twins_of_sent
from django_rmq_retry.parked.under_way import paused_too, under_way
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.recurring import thread_name
from django_rmq_retry.wording import listed, span

BAR_WIDTH = 24
LINE_SECONDS = 10.0
"""The time between two lines if stderr is not a terminal."""
POLL_SECONDS = 0.25
"""The longest time between two looks at a requeue run."""
OUTCOME_SECONDS = 60.0
MOST_EXAMPLES = 3
"""The most examples of a finding in a preview."""
MORE_COUNTS = {
    "unconfirmed": "NOT CONFIRMED",
    "handled_twice": "HANDLED TWICE",
    "perhaps_twice": "PERHAPS TWICE",
}
"""Counts of requeue runs that a list has only if one of them is not 0."""
TWINS = (
    "Not parked, with the same business key or message id: it is handled as well, so these may be done twice. "
    "Leave them out (--except-from) until you know:"
)

RATE_HELP = f"messages per second; {DEFAULT_RATE:g} by default"


def add_arguments(add: Callable[..., CommandParser]) -> None:
    _add_requeue(add)
    _add_requeue_run(add)
    runs = add("requeue-runs", show_runs, help="list requeue runs, the latest first")
    runs.add_argument("--active", action="store_true", help="only requeue runs that have not ended")
    add_limit(runs, "requeue runs")


def add_guard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-at",
        type=percent,
        default=STOP_AT,
        metavar="N%",
        help="pause when more than this percentage fails again; 20%% by default, 100%% switches this guard off",
    )


def _add_requeue(add: Callable[..., CommandParser]) -> None:
    parser = add("requeue", requeue, help="send messages back to their queues, as a requeue run")
    add_choice(parser)
    option = parser.add_argument
    option("--rate", type=float, default=DEFAULT_RATE, metavar="N", help=RATE_HELP)
    option("--max-depth", type=int, metavar="N", help="wait while the target queue has more than N messages")
    add_guard(parser)
    option(
        "--to",
        default="",
        metavar="QUEUE",
        help="send to this declared queue instead of the queue where each message failed",
    )
    option("--one-by-one", action="store_true", help="send one message of each business key at a time")
    option("--canary", action="store_true", help="send one message, and the others after it was processed")
    option(
        "--include",
        action="append",
        default=[],
        choices=INCLUDABLE,
        help="also send messages that are left out for this reason",
    )
    option("--planned", action="store_true", help="let a consumer start the requeue run once the broker is reachable")
    option("--no-wait", action="store_true", help="let a consumer send the messages; return at once")
    add_wait(parser)
    add_act(parser)
    add_user(parser)


def _add_requeue_run(add: Callable[..., CommandParser]) -> None:
    run = add("requeue-run", drive_run, help="follow a requeue run until it ends, or control it")
    run.add_argument("id", type=int, metavar="RUN", help="the number of the requeue run")
    control = run.add_mutually_exclusive_group()
    for name in ("pause", "resume", "stop"):
        control.add_argument(f"--{name}", action="store_true", help=f"{name} the requeue run")
    run.add_argument(
        "--canary", action="store_true", help="with --resume: send one message, and the others after it was processed"
    )
    control.add_argument("--rate", type=float, metavar="N", help="change the rate to N messages per second")
    control.add_argument("--export", action="store_true", help="write the outcome of each message as CSV")
    run.add_argument("--reason", default="", help="the reason, kept in the audit log")
    add_wait(run)
    add_yes(run)


def add_wait(parser: CommandParser) -> None:
    text = f"seconds to wait for outcomes after the last message, 0 for none; {OUTCOME_SECONDS:g} by default"
    parser.add_argument("--wait", type=float, default=OUTCOME_SECONDS, metavar="S", help=text)


def requeue(command: RmqCommand, options: Options) -> Exit:
    chosen = selection_of(options, states=OPEN_STATES)
    wanted = _options(options)
    findings = report(chosen, wanted.terms)
    partly = report_keys(command, chosen)
    _preview(command, findings, chosen, wanted, options)
    if not findings.sendable:
        return Exit.NOTHING
    if options["dry_run"]:
        return Exit.DONE
    if why := lacks_reason(chosen.count, options["reason"]) or lacks_reason_for_risk(findings, options["reason"]):
        raise Refused(why)
    refuse_doubtful(chosen, options)
    unread = _check_broker(options, [queue for queue, _count in findings.queues])
    say_unread(command, unread)
    part = f"{findings.sendable} of {plural(findings.total, 'message')}"
    confirm_number(command, findings.sendable, f"Requeue {part}?", options)
    run = start(chosen, actor_of(options), wanted, reason=options["reason"])
    command.say(f"Requeues {part}.")
    if options["planned"] or options["no_wait"]:
        return report_run(command, run, options, Exit.DONE) or partly
    return follow(command, run, options) or partly


def _options(options: Options) -> RequeueOptions:
    names = ("rate", "max_depth", "stop_at", "one_by_one", "canary", "planned")
    return RequeueOptions(
        target=checked_target(options["to"]),
        include=[name for name in options["include"] if name != "permanent"],
        confirmed_permanent="permanent" in options["include"],
        **{name: options[name] for name in names},
    )


def drive_run(command: RmqCommand, options: Options) -> Exit:
    actor, number, reason = Actor.of_shell(), options["id"], options["reason"]
    run = RequeueRun.objects.filter(pk=number).first()
    if run is None:
        raise CommandError(f"There is no requeue run {number}.", returncode=Exit.NOTHING)
    if options["canary"] and not options["resume"]:
        raise CommandError("--canary works with --resume only.", returncode=Exit.USAGE)
    if options["resume"]:
        return _resume(command, run, options)
    for name, act in (("pause", run_steering.pause_run), ("stop", run_steering.stop_run)):
        if options[name]:
            return report_run(command, act(number, actor, reason=reason), options, Exit.DONE)
    if options["rate"] is not None:
        run = run_steering.change_rate(number, actor, rate=options["rate"], reason=reason)
        return report_run(command, run, options, Exit.DONE)
    if options["export"]:
        for line in (early_lines if run.retries_of else run_lines)(number, actor):
            command.stdout.write(line, ending="")
        return Exit.DONE
    if run.state not in ACTIVE or run.state == RunState.PAUSED:
        return report_run(command, run, options, code_of(run))
    return follow(command, run, options)


def _resume(command: RmqCommand, run: RequeueRun, options: Options) -> Exit:
    """Resume a run, and say what it sends; one that has failed goes on with a test, or for a reason."""
    canary, reason = options["canary"], options["reason"]
    rest = f"{plural(run.unsent, 'message')} at {run.rate:g} per second"
    failed = run_steering.has_failed(run)
    if not canary and run_steering.resume_lacks_reason(run, reason):
        proof = "Nothing shows yet that the cause is gone"
        if run_steering.shown_to_work(run):
            proof = "Messages with the same errors were handled since then"
        test = "--canary to send one, and the others after it was processed, or " if run.unsent > 1 else ""
        raise Refused(
            f"Nothing was resumed. {STOOD_STILL.get(run.wait, run.get_wait_display())} {proof}. This would send {rest} "
            f"without a test. Add {test}--reason to do so."
        )
    resumed = run_steering.resume_run(run.pk, Actor.of_shell(), canary=canary, reason=reason)
    if canary:
        command.say("Sends one message, and the others after it was processed.")
    else:
        command.say(f"Sends {rest}{', without a test' if failed else ''}.")
    return report_run(command, resumed, options, Exit.DONE)


def percent(text: str) -> float:
    number = float(text.removesuffix("%"))
    if not 0 <= number <= 100:  # noqa: PLR2004 - percent
        raise argparse.ArgumentTypeError(f"takes 0% to 100%, not {text}")
    return number


def show_runs(command: RmqCommand, options: Options) -> Exit:
    rows = RequeueRun.objects.order_by("-pk")
    runs = list((rows.filter(state__in=ACTIVE) if options["active"] else rows)[: options["limit"]])
    leave_out_unfounded(runs)
    if options["json"]:
        held, unsent = held_up(runs), unsent_when_stopped(runs)
        items = [run_data(run, held.get(run.pk, ()), not_sent=unsent.get(run.pk, 0)) for run in runs]
        command.document("parked_requeue_runs/1", items=items)
    elif runs:
        terminal = command.stdout.isatty()
        head = ["RUN", "STATE", "STARTED", "BY", "TOTAL", "SENT", "PROCESSED", "FAILED AGAIN", "LEFT OUT"]
        counts = ["total", "sent", "processed", "failed", "skipped"]
        for name, title in MORE_COUNTS.items():
            if any(getattr(run, name) for run in runs):
                counts, head = [*counts, name], [*head, title]
        if unsent := unsent_when_stopped(runs):
            counts, head = [*counts, "not_sent"], [*head, "NOT SENT"]

        def number_of(run: RequeueRun, name: str) -> int:
            not_sent = unsent.get(run.pk, 0)
            return not_sent if name == "not_sent" else getattr(run, name) - (not_sent if name == "skipped" else 0)

        started = [clock(run.created_at, terminal=terminal) for run in runs]
        held, now = held_up(filter(stands, runs)), database_clock.reckoned(records_alias())
        states = ["waits" if run.nothing_sent_since(now) else run.state for run in runs]
        cells = [
            (run.pk, state, at, run.who, *(number_of(run, name) for name in counts), run.reason)
            for run, state, at in zip(runs, states, started, strict=True)
        ]
        command.table([(*head, "REASON"), *cells], cut=True)
        for run in runs:
            if run.pk in held:
                command.say(f"Requeue run {run.pk} waits: {in_few_words(held[run.pk])}.")
            elif since := run.nothing_sent_since(now):
                why = run.explanation or f"Nothing has been sent since {local(since)}."
                command.say(f"Requeue run {run.pk} sends nothing now. {why}")
    else:
        command.say("There are no requeue runs.")
    return Exit.DONE if runs else Exit.NOTHING


def run_data(run: RequeueRun, stopped: Sequence[QueueState], *, not_sent: int) -> Mapping[str, object]:
    """Return a run as JSON has it; what a stopped one had still to send is not counted among what was left out."""
    names = (
        "state",
        "wait",
        "note",
        "by",
        "approved_by",
        "reason",
        "retries_of",
        "target",
        "rate",
        "max_depth",
        "stop_at",
        "one_by_one",
        "canary",
    )
    outcomes = ("total", "sent", "processed", "failed", "skipped", "unconfirmed", "excluded")
    counts = (*outcomes, "edited", "handled_twice", "perhaps_twice")
    times = {name: utc(getattr(run, name)) for name in ("created_at", "started_at", "sent_at", "finished_at")}
    times["sends_nothing_since"] = utc(run.nothing_sent_since(database_clock.reckoned(records_alias())))
    facts = {name: getattr(run, name) for name in (*names, *counts)}
    facts |= {"skipped": run.skipped - not_sent, "not_sent": not_sent}
    return {"id": run.pk, **facts, **times, "stopped_queues": [one.queue for one in stopped]}


def _preview(
    command: RmqCommand, found: RequeueReport, chosen: Selection, wanted: RequeueOptions, options: Options
) -> None:
    twins, runs = twins_of_sent(chosen, found), under_way(chosen.queryset(), counted=found.under_way)
    if options["json"] and options["dry_run"]:
        names = {"name": "name", "count": "count", "left_out": "left_out", "why": "explanation", "examples": "examples"}
        names |= {"detail": "detail"}
        findings = [{key: getattr(finding, name) for key, name in names.items()} for finding in found.findings]
        command.document(
            "parked_requeue_preview/1",
            total=found.total,
            sendable=found.sendable,
            findings=findings,
            queues=dict(found.queues),
            released=found.released.messages,
            runs=[{"id": one.run.pk, "by": one.run.by, "state": one.run.state, "count": one.unsent} for one in runs],
            elsewhere=[place_data(one) for one in each(twins)],
            rate=wanted.rate,
            max_depth=wanted.max_depth,
            stop_at=wanted.guard,
            selection=token_of(chosen),
            **lists_data(chosen),
        )
        return
    out = command.line if options["dry_run"] else command.say
    told = chain.from_iterable(map(_finding_lines, found.findings))
    also = [*map(str, runs), paused_too(runs) if found.sendable else ""]
    for line in (*told, *(f"! {one}" for one in also if one), *_warning_of(twins)):
        out(line)
    if found.released.messages:
        out(f"  {found.released.sentence}")
    stopped = _stopped(queue for queue, _count in found.queues)
    for queue, count in found.queues:
        out(f"  {count} to {queue}" + (f", where messages wait: {stopped[queue]}" if queue in stopped else ""))
    if found.sendable > 1:
        out(f"  {_pace(wanted, found.sendable)}")
        out(f"  guard: {guard_text(wanted.guard)}")
    if found.sendable and wanted.max_depth is not None:
        out(f"  depth limit: waits while a queue has more than {wanted.max_depth} ready")
    for line in _total_lines(found, chosen, would=options["dry_run"] or not found.sendable):
        out(line)
    if options["dry_run"] and found.total:
        command.line("To requeue exactly these within an hour, pass this instead of the options that chose them:")
        command.line(f"--selection {token_of(chosen)}{reason_for(chosen.count, options['reason'])}")


def _total_lines(found: RequeueReport, chosen: Selection, *, would: bool) -> Iterator[str]:
    """Yield how many of the messages a requeue would send, if it is not to begin, or why there are none."""
    if found.total and would:
        yield f"Would requeue {found.sendable} of {plural(found.total, 'message')}."
    if not found.total:
        yield "No message matches, so there is nothing to requeue."
        if reasons := counts_beside(chosen, "reason"):
            yield f"The rest of the filter matches messages with these reasons: {reasons}."


def _finding_lines(one: RequeueFinding) -> Iterator[str]:
    examples = ", ".join(f"{label} (#{pk})" for pk, label in one.examples[:MOST_EXAMPLES])
    more = "…" if one.count > MOST_EXAMPLES else ""
    yield f"{'!' if one.warns else ' '} {one.count} {one.name.replace('_', ' ')}, {_fate(one)}: {examples}{more}"
    if one.detail or one.risk:
        yield "    " + " - ".join(filter(None, (one.detail, one.risk)))
    if one.later:
        more = ", …" if len(one.later) > MOST_EXAMPLES else ""
        ids = ", ".join(one.later[:MOST_EXAMPLES])
        yield f"    to leave the later {len(one.later)} out, pass --except-from a file with {ids}{more}"
    for pk, label, sentence in decisions_on(one.examples) if one.name in DECIDED else one.decisions:
        yield f"    {label} (#{pk}): {sentence}"


def _warning_of(twins: Twins) -> list[str]:
    return [f"! {TWINS}", *(f"    {one.became}: {one}" for one in each(twins))] if twins else []


def _pace(wanted: RequeueOptions, count: int) -> str:
    """Return how fast the messages are sent, and which of them first."""
    seconds = count / wanted.rate
    first = "one, and the others after it was processed; then " if wanted.canary else ""
    about = "about" if wanted.max_depth is None else "at least"
    lasts = f", {about} {span(timedelta(seconds=seconds))}" if seconds >= 1 else ""
    return f"sends {first}{wanted.rate:g} per second{lasts}"


def _stopped(queues: Iterable[str]) -> Mapping[str, str]:
    """Return who stopped those of the queues in which messages wait: an operator, or the breaker of a handler."""
    now = table.now()
    return {
        one.queue: f"paused by {one.by}" if one.is_paused(now) else f"the breaker of {one.circuit.handler} is open"
        for one in table.stopped(queues, now)
    }


def guard_text(guard: float | None) -> str:
    if guard is None:
        return "off, so the requeue run continues however many messages fail again"
    return f"pauses the requeue run when more than {guard:g}% of at least {MIN_OUTCOMES} outcomes failed again"


def _fate(one: RequeueFinding) -> str:
    if one.left_out:
        them = "it" if one.count == 1 else "them"
        return f"left out (--include {one.name} sends {them})" if one.includable else "left out"
    return "sent one after another" if one.name == "duplicates" else "sent"


def _check_broker(options: Options, queues: Sequence[str]) -> list[str]:
    """Return those of the queues that have no consumer; raise a CommandError without a broker."""
    if options["planned"]:
        return []
    broker = broker_connections.connections.target_queues(options["timeout"])
    try:
        if not broker.is_reachable():
            text = "The broker is unreachable, so nothing was requeued. Pass --planned to start the requeue run later."
            raise CommandError(text, returncode=Exit.UNREACHABLE)
        return [queue for queue in queues if broker.lacks_consumers(queue)]
    finally:
        broker.close()


def say_unread(command: RmqCommand, queues: Sequence[str]) -> None:
    """Tell which of these queues without a consumer need one; one that is stopped does not, and is told as such."""
    now = table.now()
    without = excused(table.stopped(queues, now), now) if queues else ()
    for queue in queues:
        if queue not in without:
            command.say(f"No consumer reads {queue!r}, so messages to it wait. Start manage.py rmq_consume.")


def follow(command: RmqCommand, run: RequeueRun, options: Options) -> Exit:
    try:
        ended = Follower(command, run.pk).follow(wait=options["wait"])
    except KeyboardInterrupt:
        again = f"rmq_parked requeue-run {run.pk}"
        command.say(f"Requeue run {run.pk} resumes with the next consumer, or with {again}. To stop it: {again} --stop")
        raise
    code = report_run(command, ended, options, code_of(ended, outcomes=options["wait"] > 0))
    if ended.sent > ended.processed + ended.failed:
        broker = broker_connections.connections.target_queues(options["timeout"])
        try:
            say_unread(command, [queue for queue in waiting_in(ended) if broker.lacks_consumers(queue)])
        finally:
            broker.close()
    return code


def report_run(command: RmqCommand, run: RequeueRun, options: Options, code: Exit) -> Exit:
    leave_out_unfounded([run])
    stopped = held_up([run]).get(run.pk, [])
    if options["json"]:
        command.document(
            "parked_requeue_run/1", run=run_data(run, stopped, not_sent=unsent_when_stopped([run]).get(run.pk, 0))
        )
    else:
        command.line(summary(run, in_few_words(stopped) if stands(run) else ""))
        if run.explanation:
            command.say(run.explanation)
        for line in stopped_lines(stopped):
            command.say(line)
        paused = run.state == RunState.PAUSED
        if paused and run.failed and not run.retries_of:
            command.say(f"To list the messages that failed again: manage.py rmq_parked list --failed-of-run {run.pk}")
        if run.unconfirmed and not run.retries_of:
            command.say(
                f"The broker did not confirm {run.unconfirmed}. They may have been delivered. Find out whether they "
                "were handled, then discard those that were, and requeue the others with --include unconfirmed."
            )
            command.say(f"To list them: manage.py rmq_parked list --unconfirmed-of-run {run.pk}")
        itself = f"manage.py rmq_parked requeue-run {run.pk}"
        _say_twice(command, run, itself)
        if run_steering.retestable(run):
            command.say(f"To send one again, and the others after it was processed: {itself} --resume --canary")
            command.say(f"To send all {run.unsent} without a test: {itself} --resume --reason TEXT")
        elif paused:
            command.say(f"To resume it: {itself} {run_steering.resuming(run)}")
        elif run.wait in HELD:
            command.say(f"To send the rest without waiting: {itself} --resume")
        if paused:
            command.say(f"To stop it: {itself} --stop")
    return code


def stopped_lines(stopped: Sequence[QueueState]) -> Iterator[str]:
    """Yield why what was sent to these queues waits."""
    now, read = table.now(), read_if_open(stopped)
    for one in stopped:
        why = one.explanation(now, read=read is None or one.queue in read)
        yield f"What was sent to {one.queue} waits. {why}"


def _say_twice(command: RmqCommand, run: RequeueRun, itself: str) -> None:
    """Tell which messages were handled twice, or perhaps: those of a run of waiting retries have no records to list."""
    for number, option, what, rows in (
        (run.handled_twice, "--handled-twice-of-run", "were handled twice", HANDLED_TWICE),
        (run.perhaps_twice, "--perhaps-twice-of-run", "may have been handled twice", PERHAPS_TWICE),
    ):
        if number and run.retries_of:
            names = run.retries.filter(rows).order_by("pk").values_list("shown", flat=True)
            command.say(f"These {what}: {listed(name or '-' for name in names)}. All outcomes: {itself} --export")
        elif number:
            command.say(f"To list the messages that {what}: manage.py rmq_parked list {option} {run.pk}")
    for act in checks_of_runs([run]).values():
        command.say(f"{checked_in_words(act)}.")


class Follower:
    """Sends a requeue run's messages while no other process does, and shows the progress."""

    def __init__(self, command: RmqCommand, run_id: int) -> None:
        self._command = command
        self._run_id = run_id
        self._terminal = command.stderr.isatty()
        self._shown = 0.0
        self._why = ""

    def follow(self, *, wait: float) -> RequeueRun:
        """Follow the run until all messages have an outcome, at most ``wait`` seconds after the last one was sent.

        A run that waits for its first outcomes is left to a consumer after so long, but not before a minute.
        """
        steps: RunSteps | None = None
        waiting_since: float | None = None
        held_since: float | None = None
        told = False
        try:
            while True:
                steps = steps or RunSteps(self._run_id, thread_name("rmq_parked"))
                with self._whole():
                    pause = steps.step()
                run = RequeueRun.objects.get(pk=self._run_id)
                self._show(run)
                if run.state not in DRIVEN:
                    return run
                if pause is None:
                    # A consumer drives the run. If that consumer dies, its lease expires and this process takes over.
                    steps.end()
                    steps = None
                held_since = (held_since or time.monotonic()) if run.wait in HELD else None
                if held_since is not None and time.monotonic() - held_since >= max(wait, OUTCOME_SECONDS):
                    return run
                if run.state == RunState.WAITING:
                    if waiting_since is not None and not told and wait > 0:
                        self._clear()
                        self._command.say(f"All is sent. Waits for outcomes, at most {wait:g} s; --wait 0 does not.")
                        told = True
                    waiting_since = waiting_since or time.monotonic()
                    if time.monotonic() - waiting_since >= wait:
                        return run
                time.sleep(POLL_SECONDS if pause is None else min(pause, POLL_SECONDS))
        finally:
            if steps is not None:
                steps.end()
            self._clear()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Delay Ctrl-C until the messages in flight are confirmed and recorded; a second Ctrl-C stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        asked = threading.Event()

        def interrupt(_number: int, _frame: object) -> None:
            if asked.is_set():
                raise KeyboardInterrupt
            asked.set()
            self._command.say("Stopping after the messages in flight. Press Ctrl-C again to stop at once.")

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if asked.is_set():
            raise KeyboardInterrupt

    def _show(self, run: RequeueRun) -> None:
        held = in_few_words(held_up(filter(stands, [run])).get(run.pk, ()))
        why = " · ".join(filter(None, (run.explanation, held)))
        if self._terminal:
            self._write(f"\r\x1b[K{bar(run, why)}")
            return
        if why and why != self._why:
            self._command.say(f"Requeue run {run.pk}: {why}")
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._command.say(f"Requeue run {run.pk}: {bar(run, why)}")
            self._shown = time.monotonic()
        self._why = why

    def _clear(self) -> None:
        if self._terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._command.stderr.write(text, lambda it: it, ending="")
        self._command.stderr.flush()


def bar(run: RequeueRun, why: str) -> str:
    """Return a progress bar: ``60% ██████████████▌         126/211 20/s  processed 118 failed again 1``."""
    todo = run.total - run.skipped
    done = run.sent + run.unconfirmed
    share = done / todo if todo else 1.0
    filled = "█" * round(share * BAR_WIDTH)
    outcomes = f"processed {run.processed} failed again {run.failed}"
    real = measured_rate(run)
    rate = run.rate if real is None and not run.wait else round(real or 0, 2)
    pace = f" {rate:g}/s" if rate else ""
    text = f"{share:4.0%} {filled:<{BAR_WIDTH}} {done}/{todo}{pace}  {outcomes}"
    return f"{text}  {why}" if why else text


TALLY_WORDS = {
    ItemState.PROCESSED: "processed",
    ItemState.FAILED: "failed again",
    ItemState.SENT: "waiting for outcome",
    ItemState.SKIPPED: "left out",
    ItemState.UNCONFIRMED: "not confirmed",
    ItemState.PENDING: "not sent",
}


def summary(run: RequeueRun, held: str = "") -> str:
    """Return the result: ``Requeue run 73: 207 processed, 3 failed again, 1 left out.``

    Of one that has not ended also its state, and which stopped queue it waits for.
    """
    tally, not_sent = run.tally, unsent_when_stopped([run]).get(run.pk, 0)
    tally[ItemState.SKIPPED] -= not_sent
    tally[ItemState.PENDING] += not_sent
    parts = [f"{count} {TALLY_WORDS[state]}" for state, count in tally.items() if count]
    parts += [f"{run.edited} sent as edited"] if run.edited else []
    parts += [f"at least {run.handled_twice} handled twice"] if run.handled_twice else []
    parts += [f"{run.perhaps_twice} perhaps handled twice"] if run.perhaps_twice else []
    parts += [f"{run.excluded} more left out by key"] if run.excluded else []
    text = ", ".join(parts)
    state = " · ".join(filter(None, (run.get_state_display().lower(), held)))
    ended = "" if run.state == RunState.FINISHED else f" ({state})"
    return f"Requeue run {run.pk}{ended}: {text or 'nothing to send'}."


def code_of(run: RequeueRun, *, outcomes: bool = True) -> Exit:
    """Return 0 only if every chosen message was processed, or was sent if nobody waits for outcomes."""
    done = run.processed if outcomes else run.sent - run.failed
    return Exit.DONE if done == run.total else Exit.PARTLY
