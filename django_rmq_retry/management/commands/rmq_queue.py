"""``manage.py rmq_queue``: show the state of the queues; pause and resume them; send retries that wait."""

from datetime import UTC, datetime
from functools import partial

from django.core.management.base import CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.breakers import table
from django_rmq_retry.breakers.halts import halted, known_last
from django_rmq_retry.breakers.queue_state import Flow, QueueState
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management import early_runs
from django_rmq_retry.management.accounts import actor_of, add_user
from django_rmq_retry.management.arguments import age
from django_rmq_retry.management.command import Options, RmqCommand, check_known
from django_rmq_retry.management.terminal import clock, utc
from django_rmq_retry.models import QueueControl
from django_rmq_retry.parked import queue_pauses
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, Outdated

HALTED = "halted"
"""The state of a queue that flows for operators and breakers, but whose first message fails and goes first."""
STATE_STYLES = {Flow.FLOWING: "SUCCESS", Flow.OPEN: "ERROR", HALTED: "ERROR"}


class Command(RmqCommand):
    help = "Show the state of the queues; pause and resume them; send waiting retries before they are due."
    examples = (
        "rmq_queue list",
        'rmq_queue pause payments --for 30m --reason "the bank is closed"',
        "rmq_queue resume payments",
        'rmq_queue send-waiting payments --reason "the bank is back"',
    )

    common = ("using",)

    def add_arguments(self, parser: CommandParser) -> None:
        add = self.subcommands(parser)
        shows = "list queues that have a handler, with the reason of each pause"
        add("list", lambda options: self._report(queue_pauses.queue_states(), options), shows)
        pause = add("pause", self._change, "stop consuming the queue, in all processes, within seconds")
        resume = add("resume", self._change, "resume the queue; also closes an open breaker")
        sends = "send the retries of a queue before they are due, as a requeue run"
        early_runs.add_arguments(add("send-waiting", partial(early_runs.send_waiting, self), sends))
        shown = "the reason, shown to operators and kept in the audit log"
        for one in (pause, resume):
            one.add_argument("queues", nargs="+", metavar="QUEUE", help="work queues of this project")
            one.add_argument("--reason", default="", required=one is pause, metavar="TEXT", help=shown)
        add_user(resume)
        pause.add_argument(
            "--for", dest="span", type=age, metavar="SPAN", help="resume automatically after: 90s, 30m, 2h"
        )

    def _change(self, options: Options) -> Exit:
        check_known("queue", options["queues"], queue_pauses.queues())
        queues, left, asked = list(dict.fromkeys(options["queues"])), 0, False
        for queue in queues:
            try:
                self._switch(queue, options)
            except SecondPersonNeeded as needed:
                asked = True
                self.ask(needed, actor_of(options))
            except Outdated as refusal:
                left += 1
                self.say(str(refusal))
        self._report([one for one in queue_pauses.queue_states() if one.queue in queues], options)
        if asked:
            return Exit.ASKED
        return Exit.DONE if not left else Exit.NOTHING if left == len(queues) else Exit.PARTLY

    def _switch(self, queue: str, options: Options) -> None:
        reason = options["reason"]
        if options["subcommand"] == "resume":
            queue_pauses.resume_queue(queue, actor_of(options), reason=reason)
        else:
            queue_pauses.pause_queue(
                queue, Actor.of_shell(), reason=reason, until=queue_pauses.pause_end(options["span"] or None)
            )

    def _report(self, states: list[QueueState], options: Options) -> Exit:
        now, halts = table.now(), {row.queue: row for row in halted()}
        if options["json"]:
            self.document(
                f"queue_{options['subcommand']}/1", items=[_data(one, now, halts.get(one.queue)) for one in states]
            )
        elif states:
            terminal = self.stdout.isatty()
            head = ("QUEUE", "STATE", "SINCE", "RESUMES", "REASON")
            rows = [_cells(one, now, halts.get(one.queue), terminal=terminal) for one in states]
            styles = ["", *(STATE_STYLES.get(_state(one, now, halts.get(one.queue)), "WARNING") for one in states)]
            self.table([head, *rows], styles)
        else:
            self.say("No installed app has a handler, so there is no queue.")
        return Exit.DONE if states else Exit.NOTHING


def _state(one: QueueState, now: float, halt: QueueControl | None) -> str:
    state = one.state(now)
    return HALTED if halt and state is Flow.FLOWING else state


def _data(one: QueueState, now: float, halt: QueueControl | None) -> dict[str, object]:
    circuit = one.circuit
    pause = {"by": one.by, "reason": one.reason, "since": utc(_at(one.since)), "until": utc(_at(one.until))}
    breaker = {
        "handler": circuit.handler,
        "cause": circuit.cause,
        "since": utc(_at(circuit.since)),
        "failed": circuit.failed,
        "next_probe": utc(_at(circuit.probe_at)),
    }
    return {
        "queue": one.queue,
        "state": _state(one, now, halt),
        "pause": pause if one.is_paused(now) else None,
        "breaker": breaker if circuit.opened else None,
        "halt": _halt(halt) if halt else None,
    }


def _halt(row: QueueControl) -> dict[str, object]:
    names = {"message": row.halted_message, "key": row.halted_key or None}
    return {**names, "error": row.halted_error, "since": utc(row.halted_at)}


def _cells(one: QueueState, now: float, halt: QueueControl | None, *, terminal: bool) -> tuple[object, ...]:
    held, state = one.is_paused(now), _state(one, now, halt)
    since = _at(one.since if held else one.circuit.since)
    on = one.resumes_at(now)
    why = ""
    if held:
        why = f"{one.by}: {one.reason}" if one.reason else one.by
    elif one.circuit.opened:
        failed = f", {plural(one.circuit.failed, 'probe')} failed" if one.circuit.failed else ""
        why = f"breaker of {one.circuit.handler}: {one.circuit.cause}{failed}"
    elif halt:
        first = halt.halted_key or halt.halted_message or "-"
        since, why = halt.halted_at, f"{first}, the first message, fails: {halt.halted_error}"
        if last := known_last(halt, datetime.fromtimestamp(now, UTC)):
            why += f" (last known at {clock(last, terminal=terminal)})"
    times = (clock(moment, terminal=terminal) for moment in (since, _at(on)))
    return one.queue, state, *times, why


def _at(epoch: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch, UTC) if epoch else None
