"""``manage.py rmq_delete``: queues of the project from the broker, empty ones unless it is forced."""

from collections.abc import Sequence

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry import registry
from django_rmq_retry.broker.declaring import MOVING
from django_rmq_retry.broker.deleting import UNSEEN, Deleted, delete_exchanges, delete_queues, stale
from django_rmq_retry.broker.recreating import TRIAL
from django_rmq_retry.core.declarations import Topology
from django_rmq_retry.management.base import Exit, Options, RmqCommand, add_json, add_yes, check_known
from django_rmq_retry.management.reaching import declarer
from django_rmq_retry.management.showing import WATCHING


class Command(RmqCommand):
    help = "Delete queues of the project that are empty and that nobody consumes."
    examples = (
        "rmq_delete payments.charge.retry.30s",
        "rmq_delete --all",
        "rmq_delete payments.charge --force --yes",
    )
    common = ("timeout",)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queues", nargs="*", metavar="QUEUE")
        parser.add_argument("--all", action="store_true", help="every queue and exchange of the project")
        parser.add_argument("--force", action="store_true", help="also with messages and consumers: they are lost")
        add_json(parser)
        add_yes(parser)

    def run(self, options: Options) -> Exit | None:
        topology = registry.topology()
        queues = self._queues(topology, options)
        exchanges = [one.name for one in topology.exchanges.values() if options["all"] and not one.existing]
        with declarer(timeout=options["timeout"]) as it:
            address = it.session.access.shown
            seen = it.inspector is not None
            self.confirm(_question([*queues, *exchanges], address, options, seen=seen), yes=options["yes"])
            if seen and not options["force"]:
                self.say(WATCHING)
            done = delete_queues(it, queues, force=options["force"])
            dropped = delete_exchanges(it, exchanges)
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
            self._tell("Queue", done)
            self._tell("Exchange", dropped)
        if done.refused or dropped.refused:
            return Exit.PARTLY if done.deleted or dropped.deleted else Exit.DRIFT
        return Exit.DONE if done.deleted or dropped.deleted else Exit.NOTHING

    def _queues(self, topology: Topology, options: Options) -> list[str]:
        named: list[str] = options["queues"]
        if bool(named) is options["all"]:
            raise CommandError("Name the queues to delete, or write --all.", returncode=Exit.USAGE)
        ours = [queue.name for queue in topology.queues.values() if not queue.existing]
        if options["all"]:
            return ours
        # What a move or a former back-off has left is ours as well, but nothing to be offered for a name mistyped.
        left = {name + end for name in ours for end in (MOVING, TRIAL)} | set(stale(topology, named))
        check_known("queue of this project", [name for name in named if name not in left], ours)
        return named

    def _tell(self, what: str, done: Deleted) -> None:
        for name in done.deleted:
            self.line(f"{what} {name!r} was deleted.")
        for name in done.missing:
            self.line(f"{what} {name!r} does not exist.")
        for name, reason in done.refused.items():
            self.line(f"{what} {name!r} was kept: {reason}", "WARNING")


def _question(names: Sequence[str], address: str, options: Options, *, seen: bool) -> str:
    how = "with all their messages" if options["force"] else "where empty"
    sure = "" if seen or options["force"] else f" {UNSEEN}"
    return f"Delete on {address}, {how}: {', '.join(names)}?{sure}"
