"""``rmq_parked``: requeue messages, and list, follow and control requeue runs."""

import argparse
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.accounts import actor_of, add_user
from django_rmq_retry.management.arguments import add_limit
from django_rmq_retry.management.command import Options, RmqCommand
from django_rmq_retry.management.parked_choice import (
    OPEN_STATES,
    add_act,
    add_choice,
    confirm_number,
    lists_data,
    reasons_beside,
    refuse_doubtful,
    report_keys,
    selection_of,
    token_of,
)
from django_rmq_retry.management.terminal import clock, utc
from django_rmq_retry.models import ParkedMessage, RequeueRun, RunState, State
from django_rmq_retry.models.runs import ACTIVE, MIN_OUTCOMES
from django_rmq_retry.parked import run_steering
from django_rmq_retry.parked.findings import DECIDED, INCLUDABLE, MOST_QUEUES, RequeueFinding, RequeueReport, report
from django_rmq_retry.parked.lease import DRIVEN
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.outcome_texts import decisions_on
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.requeue_options import DEFAULT_RATE, STOP_AT, RequeueOptions, checked_target
from django_rmq_retry.parked.run_steps import RunSteps
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import early_lines, run_lines
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.recurring import thread_name

BAR_WIDTH = 24
LINE_SECONDS = 10.0
"""The time between two lines if stderr is not a terminal."""
POLL_SECONDS = 0.25
"""The longest time between two looks at a requeue run."""
OUTCOME_SECONDS = 60.0
MOST_EXAMPLES = 3
"""The most examples of a finding in a preview."""

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


def add_wait(parser: CommandParser) -> None:
    text = f"seconds to wait for outcomes after the last message; {OUTCOME_SECONDS:g} by default"
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
    unread = _check_broker(options, [queue for queue, _count in findings.queues])
    say_unread(command, unread)
    refuse_doubtful(chosen, options)
    confirm_number(command, findings.sendable, f"Requeue {plural(findings.sendable, 'message')}?", options)
    run = start(chosen, actor_of(options), wanted, reason=options["reason"])
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
        resumed = run_steering.resume_run(number, actor, canary=options["canary"], reason=reason)
        return report_run(command, resumed, options, Exit.DONE)
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


def percent(text: str) -> float:
    number = float(text.removesuffix("%"))
    if not 0 <= number <= 100:  # noqa: PLR2004 - percent
        raise argparse.ArgumentTypeError(f"takes 0% to 100%, not {text}")
    return number


def show_runs(command: RmqCommand, options: Options) -> Exit:
    rows = RequeueRun.objects.order_by("-pk")
    runs = list((rows.filter(state__in=ACTIVE) if options["active"] else rows)[: options["limit"]])
    if options["json"]:
        command.document("parked_requeue_runs/1", items=[run_data(run) for run in runs])
    elif runs:
        terminal = command.stdout.isatty()
        head = ["RUN", "STATE", "STARTED", "BY", "TOTAL", "SENT", "PROCESSED", "FAILED AGAIN", "LEFT OUT"]
        counts = ["total", "sent", "processed", "failed", "skipped"]
        if any(run.handled_twice for run in runs):
            counts, head = [*counts, "handled_twice"], [*head, "HANDLED TWICE"]
        started = [clock(run.created_at, terminal=terminal) for run in runs]
        cells = [
            (run.pk, run.state, at, run.who, *attrgetter(*counts)(run), run.reason)
            for run, at in zip(runs, started, strict=True)
        ]
        command.table([(*head, "REASON"), *cells], cut=True)
    else:
        command.say("There are no requeue runs.")
    return Exit.DONE if runs else Exit.NOTHING


def run_data(run: RequeueRun) -> Mapping[str, object]:
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
    counts = ("total", "sent", "processed", "failed", "skipped", "unconfirmed", "handled_twice")
    times = {name: utc(getattr(run, name)) for name in ("created_at", "started_at", "finished_at")}
    return {"id": run.pk, **{name: getattr(run, name) for name in (*names, *counts)}, **times}


def _preview(
    command: RmqCommand, found: RequeueReport, chosen: Selection, wanted: RequeueOptions, options: Options
) -> None:
    if options["json"] and options["dry_run"]:
        names = {"name": "name", "count": "count", "left_out": "left_out", "why": "explanation", "examples": "examples"}
        findings = [{key: getattr(finding, name) for key, name in names.items()} for finding in found.findings]
        command.document(
            "parked_requeue_preview/1",
            total=found.total,
            sendable=found.sendable,
            findings=findings,
            queues=dict(found.queues),
            released=found.released.messages,
            stop_at=wanted.guard,
            selection=token_of(chosen),
            **lists_data(chosen),
        )
        return
    out = command.line if options["dry_run"] else command.say
    for one in found.findings:
        examples = ", ".join(f"{label} (#{pk})" for pk, label in one.examples[:MOST_EXAMPLES])
        more = "…" if one.count > MOST_EXAMPLES else ""
        out(f"  {one.count} {one.name.replace('_', ' ')}, {_fate(one)}: {examples}{more}")
        for pk, label, sentence in decisions_on(one.examples) if one.name in DECIDED else one.decisions:
            out(f"    {label} (#{pk}): {sentence}")
    if found.released.messages:
        out(f"  {found.released.sentence}")
    for queue, count in found.queues:
        out(f"  {count} to {queue}")
    if found.sendable > 1:
        out(f"  guard: {guard_text(wanted.guard)}")
    begun = "Would requeue" if options["dry_run"] else "Requeues"
    out(f"{begun} {found.sendable} of {plural(found.total, 'message')}.")
    if not found.total and (reasons := reasons_beside(chosen)):
        out(f"The rest of the filter matches messages with these reasons: {reasons}.")
    if options["dry_run"]:
        command.line(f"--selection {token_of(chosen)}")


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
    for queue in queues:
        command.say(
            f"No consumer reads {queue!r}, so messages to it wait. Start manage.py rmq_consume, or see manage.py "
            "rmq_queue list for a pause."
        )


def follow(command: RmqCommand, run: RequeueRun, options: Options) -> Exit:
    try:
        ended = Follower(command, run.pk).follow(wait=options["wait"])
    except KeyboardInterrupt:
        again = f"rmq_parked requeue-run {run.pk}"
        command.say(f"Requeue run {run.pk} resumes with the next consumer, or with {again}. To stop it: {again} --stop")
        raise
    code = report_run(command, ended, options, code_of(ended))
    if ended.sent > ended.processed + ended.failed:
        broker = broker_connections.connections.target_queues(options["timeout"])
        try:
            say_unread(command, [queue for queue in _targets(ended) if broker.lacks_consumers(queue)])
        finally:
            broker.close()
    return code


def _targets(run: RequeueRun) -> list[str]:
    """Return the queues in which messages of the run wait for an outcome."""
    if run.target or run.retries_of:
        return [run.target or run.retries_of]
    waiting = ParkedMessage.objects.filter(items__run=run, state=State.REQUEUED).order_by()
    return list(waiting.values_list("queue", flat=True).distinct()[:MOST_QUEUES])


def report_run(command: RmqCommand, run: RequeueRun, options: Options, code: Exit) -> Exit:
    if options["json"]:
        command.document("parked_requeue_run/1", run=run_data(run))
    else:
        command.line(summary(run))
        if run.explanation:
            command.say(run.explanation)
        paused = run.state == RunState.PAUSED
        if paused and run.failed and not run.retries_of:
            command.say(f"To list the messages that failed again: manage.py rmq_parked list --failed-of-run {run.pk}")
        if run.handled_twice:
            listed = f"manage.py rmq_parked list --handled-twice-of-run {run.pk}"
            command.say(f"To list the messages that were handled twice: {listed}")
        itself = f"manage.py rmq_parked requeue-run {run.pk}"
        if paused and run.wait in run_steering.RETESTABLE:
            command.say(f"To send one again, and the others after it was processed: {itself} --resume --canary")
            command.say(f"To resume it without a test: {itself} --resume")
        elif paused:
            command.say(f"To resume it: {itself} --resume")
        if paused:
            command.say(f"To stop it: {itself} --stop")
    return code


class Follower:
    """Sends a requeue run's messages while no other process does, and shows the progress."""

    def __init__(self, command: RmqCommand, run_id: int) -> None:
        self._command = command
        self._run_id = run_id
        self._terminal = command.stderr.isatty()
        self._shown = 0.0
        self._why = ""

    def follow(self, *, wait: float) -> RequeueRun:
        """Follow the run until all messages have an outcome, at most ``wait`` seconds after the last one was sent."""
        steps: RunSteps | None = None
        waiting_since: float | None = None
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
                if run.state == RunState.WAITING:
                    waiting_since = waiting_since or time.monotonic()
                    if time.monotonic() - waiting_since >= wait:
                        return run
                time.sleep(POLL_SECONDS if pause is None else min(pause, POLL_SECONDS))
        finally:
            if steps is not None:
                steps.end()
            if self._terminal:
                self._write("\r\x1b[K")

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
        if self._terminal:
            self._write(f"\r\x1b[K{bar(run)}")
            return
        if run.explanation and run.explanation != self._why:
            self._command.say(f"Requeue run {run.pk}: {run.explanation}")
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._command.say(f"Requeue run {run.pk}: {bar(run)}")
            self._shown = time.monotonic()
        self._why = run.explanation

    def _write(self, text: str) -> None:
        self._command.stderr.write(text, lambda it: it, ending="")
        self._command.stderr.flush()


def bar(run: RequeueRun) -> str:
    """Return a progress bar: ``60% ██████████████▌         126/211 20/s  processed 118 failed again 1``."""
    todo = run.total - run.skipped
    done = run.sent + run.unconfirmed
    share = done / todo if todo else 1.0
    filled = "█" * round(share * BAR_WIDTH)
    outcomes = f"processed {run.processed} failed again {run.failed}"
    text = f"{share:4.0%} {filled:<{BAR_WIDTH}} {done}/{todo} {run.rate:g}/s  {outcomes}"
    return f"{text}  {run.explanation}" if run.explanation else text


def summary(run: RequeueRun) -> str:
    """Return the result: ``Requeue run 73: 207 processed, 3 failed again, 1 left out.``"""
    waiting = run.sent - run.processed - run.failed
    counts = {
        "processed": run.processed,
        "failed again": run.failed,
        "waiting for outcome": max(0, waiting),
        "left out": run.skipped,
        "not confirmed": run.unconfirmed,
        "not sent": max(0, run.total - run.sent - run.skipped - run.unconfirmed),
    }
    parts = [f"{count} {words}" for words, count in counts.items() if count]
    # What a killed process handled first has left no trace.
    parts += [f"at least {run.handled_twice} handled twice"] if run.handled_twice else []
    text = ", ".join(parts)
    ended = "" if run.state == RunState.FINISHED else f" ({run.get_state_display().lower()})"
    return f"Requeue run {run.pk}{ended}: {text or 'nothing to send'}."


def code_of(run: RequeueRun) -> Exit:
    """Return 0 only if every chosen message was processed."""
    return Exit.DONE if run.processed == run.total else Exit.PARTLY
