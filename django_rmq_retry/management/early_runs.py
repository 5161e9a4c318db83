"""``rmq_queue send-waiting``: send the retries of a queue before they are due, as a requeue run."""

from dataclasses import replace

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.breakers import table
from django_rmq_retry.breakers.queue_state import Flow
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.command import Options, RmqCommand, add_option, add_yes, check_known
from django_rmq_retry.management.parked_choice import confirm_number, keys_from
from django_rmq_retry.management.parked_runs import (
    RATE_HELP,
    add_guard,
    add_wait,
    follow,
    guard_text,
    report_run,
    say_unread,
)
from django_rmq_retry.management.terminal import clock, utc
from django_rmq_retry.parked import early_runs, queue_pauses
from django_rmq_retry.parked.early_choice import RetryFilter
from django_rmq_retry.parked.early_retries import LeftOutRetries, WaitingReport, report
from django_rmq_retry.parked.operators import Actor, Refused, lacks_reason
from django_rmq_retry.parked.requeue_options import DEFAULT_RATE, RequeueOptions
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.wording import MOST_IN_A_TEXT, listed

DEFAULT_TIMEOUT_SECONDS = 3.0


def add_arguments(parser: CommandParser) -> None:
    option = parser.add_argument
    option("queue", metavar="QUEUE", help="a work queue of this project")
    chosen = parser.add_argument_group("retries; all that wait by default")
    for name, kind, metavar, text in (
        ("key", str, "KEY", "with this business key or message id"),
        ("error", str, "TYPE", "whose last attempt failed with this error"),
        ("group", int, "GROUP", "whose last attempt belongs to this error group"),
        ("handler", str, "NAME", "of this handler"),
    ):
        meaning = f"{text}; repeatable"
        chosen.add_argument(f"--{name}", type=kind, action="append", default=[], metavar=metavar, help=meaning)
    chosen.add_argument(
        "--except-from", metavar="FILE", help="without the business keys and message ids in FILE; - is stdin"
    )
    option("--rate", type=float, default=DEFAULT_RATE, metavar="N", help=RATE_HELP)
    add_guard(parser)
    option("--canary", action="store_true", help="send one message, and the others after it was processed")
    option("--no-wait", action="store_true", help="let a consumer send the messages; return at once")
    add_wait(parser)
    option("--reason", default="", help="the reason, kept in the audit log")
    option("--dry-run", action="store_true", help="change nothing; show the retries")
    add_yes(parser)
    add_option(parser, "timeout", default=DEFAULT_TIMEOUT_SECONDS)


def send_waiting(command: RmqCommand, options: Options) -> Exit:
    queue = options["queue"]
    chosen = RequeueOptions(rate=options["rate"], stop_at=options["stop_at"], canary=options["canary"])
    chosen.check()
    check_known("queue", [queue], queue_pauses.queues())
    wanted = replace(RetryFilter.of(options), without=tuple(keys_from(options["except_from"])))
    with broker_connections.connections.session(purpose="command", patience=options["timeout"]) as session:
        if session is None:
            raise CommandError("There is no broker.", returncode=Exit.UNREACHABLE)
        found = report(session, queue, wanted)
    _preview(command, found, chosen, options)
    if not found.count:
        return Exit.NOTHING
    if options["dry_run"]:
        return Exit.DONE
    if why := lacks_reason(found.count, options["reason"]):
        raise Refused(why)
    _say_stopped(command, queue, options)
    question = f"Send {plural(found.count, 'waiting message')} of {queue} now?"
    confirm_number(command, found.count, question, {**options, "ids": options["key"]})
    run = early_runs.start(
        queue,
        Actor.of_shell(),
        chosen,
        count=found.count,
        delayed=found.delayed,
        wanted=wanted,
        left=found.left,
        reason=options["reason"],
    )
    return report_run(command, run, options, Exit.DONE) if options["no_wait"] else follow(command, run, options)


def _preview(command: RmqCommand, found: WaitingReport, chosen: RequeueOptions, options: Options) -> None:
    if options["json"] and options["dry_run"]:
        causes = [
            {"error": one.error, "count": one.count, "first_due": utc(one.first), "last_due": utc(one.last)}
            for one in found.causes
        ]
        facts = {"queue": found.queue, "waiting": found.count, "delayed": found.delayed, "not_seen": found.not_seen}
        left = {"count": found.left.total, "missing": found.left.missing, "first_due": utc(found.left.first)}
        front = [
            {"message": name, "key": one.key, "ordering_key": one.ordering_key} for name, one in found.left.in_front
        ]
        released = found.released.messages
        command.document(
            "queue_send_waiting/1", **facts, causes=causes, left_out={**left, "in_front": front}, released=released
        )
        return
    out = command.line if options["dry_run"] else command.say
    terminal = command.stdout.isatty()
    for one in found.causes:
        first, last = clock(one.first, terminal=terminal), clock(one.last, terminal=terminal)
        due = f"due {first}" if one.count == 1 else f"due {first} to {last}"
        out(f"  {one.count} {one.error or 'without an error'}, {due}")
    if found.delayed:
        out(f"  {plural(found.delayed, 'other message')} published with a delay, not sent before the time")
    if found.not_seen:
        command.say(found.not_seen)
    _say_left_out(command, found.left)
    if found.released.messages:
        command.say(f"{found.released.sentence}.")
    if found.count > 1:
        out(f"  guard: {guard_text(chosen.guard)}")
    begun = "Would send" if options["dry_run"] else "Sends"
    out(f"{begun} {plural(found.count, 'waiting message')} of {found.queue} before they are due.")


def _say_left_out(command: RmqCommand, left: LeftOutRetries) -> None:
    if left.missing:
        command.say(f"No waiting retry has {plural(len(left.missing), 'key')}: {listed(left.missing)}.")
    for name, behind in left.in_front[:MOST_IN_A_TEXT]:
        command.say(f"Left out too: {name}. {behind.sentence}")
    if left.nameless:
        command.say(f"Left out too: {plural(left.nameless, 'waiting message')} whose keys cannot be read.")
    if left.total:
        due = f", the first at {clock(left.first, terminal=command.stderr.isatty())}" if left.first else ""
        command.say(
            f"{plural(left.total, 'waiting message')} left out. RabbitMQ delivers what is left out when it is due{due};"
            " manage.py rmq_queue pause keeps it waiting."
        )


def _say_stopped(command: RmqCommand, queue: str, options: Options) -> None:
    now = table.now()
    [state] = [one.state(now) for one in queue_pauses.queue_states() if one.queue == queue]
    if state is not Flow.FLOWING:
        command.say(f"Queue {queue} is {state}: what is sent waits there. See manage.py rmq_queue list.")
    broker = broker_connections.connections.target_queues(options["timeout"])
    try:
        say_unread(command, [queue] if broker.lacks_consumers(queue) else [])
    finally:
        broker.close()
