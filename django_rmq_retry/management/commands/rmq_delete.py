"""``manage.py rmq_delete``: delete queues of the project from the broker; with messages only if forced."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.amqp.declarer import MOVING, Declarer
from django_rmq_retry.amqp.deletion import Deleted, delete_exchanges, delete_queues, stale
from django_rmq_retry.amqp.inspection import look
from django_rmq_retry.amqp.recreation import TRIAL, Doubt
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.declared import BrokerPlace, abandoned_exchanges, abandoned_queues, delete, still_consumed
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import registry
from django_rmq_retry.management.broker_status import WATCHING
from django_rmq_retry.management.command import (
    Options,
    RmqCommand,
    add_json,
    add_yes,
    check_known,
    open_declarer,
    remembered,
    usage_error,
)
from django_rmq_retry.topology.declarations import AbandonedQueue, QueueDeclaration, Role, Topology


class Command(RmqCommand):
    help = "Delete queues of the project that are empty and have no consumers."
    examples = ("rmq_delete payments.charge.retry.30s", "rmq_delete --all", "rmq_delete payments.charge --force --yes")
    common = ("timeout",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queues", nargs="*", metavar="QUEUE", help="the queues to delete")
        parser.add_argument("--all", action="store_true", help="every queue and exchange of the project")
        parser.add_argument(
            "--force", action="store_true", help="even with messages or consumers; the messages are lost"
        )
        add_json(parser)
        add_yes(parser)

    def run(self, options: Options) -> Exit | None:
        topology = registry.topology().lasting
        if bool(options["queues"]) is options["all"]:
            raise usage_error("Pass either the queues to delete or --all.")
        known = remembered(self) or []
        self._check_names(topology, options["queues"], [row.name for row in known if row.kind == "queue"])
        with open_declarer(timeout=options["timeout"]) as declarer:
            place = BrokerPlace.of(declarer.session)
            abandoned = abandoned_queues(known, registry.topology(), place)
            queues, left = self._split(declarer, self._queues(topology, abandoned, options), abandoned, options)
            exchanges = [one.name for one in topology.exchanges.values() if options["all"] and not one.existing]
            exchanges += abandoned_exchanges(known, topology, place) if options["all"] else []
            address, seen = declarer.session.access.shown, declarer.inspector is not None
            # Whoever consumes a work queue, such as the loop that took it back, needs its waiting and parked queues.
            if options["all"] and not options["force"] and (used := _used(_consumers(declarer, queues))):
                raise CommandError(
                    f"Nothing was deleted, because these queues have consumers: {used}. Stop them; or, if the queues "
                    "are another program's now, name those that only this project uses.",
                    returncode=Exit.DRIFT,
                )
            if not options["yes"]:
                question = _question([*queues, *exchanges], address, options, seen=seen)
                self.confirm(f"{question} {_read_now(_consumers(declarer, queues))}".rstrip(), yes=False)
            if seen and not options["force"]:
                self.say(WATCHING)
            feeders = [*topology.queues.values(), *(one.queue for one in abandoned)]
            done = delete_queues(declarer, queues, feeders=feeders, force=options["force"])
            done.refused.update(left)
            # The exchanges' bindings to queues of others would prevent their deletion, so these own bindings go first.
            dropped = delete_exchanges(
                declarer, exchanges, [one for one in topology.bindings if one.source in exchanges]
            )
            delete(declarer, [*done.deleted, *done.missing], dropped.deleted)
        if options["json"]:
            self.document(
                "delete/1",
                broker=address,
                deleted=done.deleted,
                missing=done.missing,
                kept={**done.refused, **dropped.refused},
                exchanges=dropped.deleted,
            )
        else:
            self._report_deleted("Queue", done)
            self._report_deleted("Exchange", dropped)
        if done.refused or dropped.refused:
            return Exit.PARTLY if done.deleted or dropped.deleted else Exit.DRIFT
        return Exit.DONE if done.deleted or dropped.deleted else Exit.NOTHING

    @staticmethod
    def _split(
        declarer: Declarer, queues: Sequence[str], abandoned: Sequence[AbandonedQueue], options: Options
    ) -> tuple[list[str], dict[str, str]]:
        """Return the queues to delete, and those that others consume now, each with a sentence."""
        kept = {} if options["queues"] and options["force"] else still_consumed(declarer, abandoned)
        left = {name: why for name, why in kept.items() if name in queues}
        return [name for name in queues if name not in left], left

    def _queues(self, topology: Topology, abandoned: Sequence[AbandonedQueue], options: Options) -> list[str]:
        """Return the queues in deletion order: waiting queues before the queues to which their messages return."""
        named: list[str] = options["queues"]
        if options["all"]:
            ours = [queue for queue in topology.queues.values() if not queue.existing]
            queues = [*ours, *(one.queue for one in abandoned)]
        else:
            self._check_names(topology, named, [one.queue.name for one in abandoned])
            queues = [topology.queues.get(name) or QueueDeclaration(name=name) for name in named]
            queues += [one.queue for one in abandoned if one.home in named and one.home not in topology.queues]
        waiting = {queue.name: queue.role is Role.WAITING for queue in queues}
        return sorted(waiting, key=lambda name: not waiting[name])

    def _check_names(self, topology: Topology, named: Sequence[str], abandoned: Sequence[str]) -> None:
        ours = [queue.name for queue in topology.queues.values() if not queue.existing]
        others = topology.queues.keys() - set(ours)
        # The remains of a move or of an earlier back-off belong to the project too, but are not suggested for a typo.
        left = {name + end for name in ours for end in (MOVING, TRIAL)} | set(stale(topology, named))
        left |= set(abandoned) - others
        check_known("queue of this project", [name for name in named if name not in left], ours)

    def _report_deleted(self, what: str, done: Deleted) -> None:
        for name in done.deleted:
            self.line(f"{what} {name!r} was deleted.")
        for name in done.missing:
            self.line(f"{what} {name!r} does not exist.")
        for name, reason in done.refused.items():
            self.line(f"{what} {name!r} was kept: {reason}", "WARNING")


def _consumers(declarer: Declarer, queues: Sequence[str]) -> dict[str, int]:
    """Return the number of consumers of each queue that can be looked at."""
    counts: dict[str, int] = {}
    for name in queues:
        with suppress(Refusal):
            holding = look(declarer.session, declarer.inspector, name)
            counts |= {name: holding.consumers} if holding is not None else {}
    return counts


def _used(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _read_now(counts: Mapping[str, int]) -> str:
    """Return a sentence on the consumers that the broker counts now: those of other queues may go on."""
    if not counts:
        return ""
    used = _used(counts)
    return f"Their consumers now: {used}." if used else "No consumer reads them now; consumers of other queues may run."


def _question(names: Sequence[str], address: str, options: Options, *, seen: bool) -> str:
    how = "with all their messages" if options["force"] else "if empty"
    doubts = () if options["force"] else (*(() if seen else (Doubt.CONSUMERS,)), Doubt.PUBLISHERS)
    return " ".join([f"Delete on {address}, {how}: {', '.join(names)}?", *doubts])
