"""``manage.py rmq_declare``: the topology onto the broker, plan first."""

from django.core.checks import run_checks
from django.core.management.base import CommandError, CommandParser

from django_rmq_retry import registry
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.deleting import Deleted, delete_queues, stale
from django_rmq_retry.broker.plans import Plan, State
from django_rmq_retry.broker.recreating import Recreated, Recreation
from django_rmq_retry.checks.saying import TAG
from django_rmq_retry.core.declarations import Topology
from django_rmq_retry.management.base import Exit, Options, RmqCommand, add_json, add_yes, check_known
from django_rmq_retry.management.reaching import declarer
from django_rmq_retry.management.showing import WATCHING, plan_as_data, show_plan, summary


class Command(RmqCommand):
    help = "Create the exchanges, queues and bindings of the project that the broker does not have yet."
    examples = ("rmq_declare", "rmq_declare --check", "rmq_declare --recreate payments.charge")
    common = ("timeout",)

    def add_arguments(self, parser: CommandParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--check", action="store_true", help="write nothing; exit code 4 if anything is to do")
        mode.add_argument("--plan", action="store_true", help="write nothing; show what would be done")
        mode.add_argument("--recreate", metavar="QUEUE", help="make a queue that differs anew, with its messages")
        mode.add_argument("--prune", action="store_true", help="then delete waiting queues no handler has any more")
        parser.add_argument(
            "--move-to", metavar="QUEUE", help="with --recreate: its messages go to this queue for good"
        )
        add_json(parser)
        add_yes(parser)

    def run(self, options: Options) -> Exit | None:
        topology = registry.topology()
        if options["move_to"] and not options["recreate"]:
            raise CommandError("--move-to belongs to --recreate.", returncode=Exit.USAGE)
        if options["recreate"]:
            check_known("queue", [options["recreate"]], topology.queues)
        looks_only = options["check"] or options["plan"]
        self._heed_checks(looks_only=looks_only)
        with declarer(timeout=options["timeout"]) as it:
            plan = it.plan(topology) if looks_only else it.declare(topology)
            recreated = self._recreate(it, topology, options) if options["recreate"] else None
            if recreated is not None:
                plan = it.plan(topology)
            pruned = self._prune(it, topology, options) if options["prune"] else Deleted()
            address = it.session.access.shown
        if options["json"]:
            self.document(
                "declare/1",
                broker=address,
                server=str(plan.server),
                written=not looks_only,
                items=list(plan_as_data(plan)),
                recreated=None if recreated is None else {"queue": recreated.queue, "moved": recreated.moved},
                deleted=pruned.deleted,
                kept=pruned.refused,
            )
        else:
            self._show(plan, address, done=not looks_only)
            self._tell(recreated, pruned)
        if pruned.refused:
            return Exit.PARTLY
        return Exit.DONE if (plan.fulfilled if options["check"] else plan.possible) else Exit.DRIFT

    def _heed_checks(self, *, looks_only: bool) -> None:
        """What ``check`` calls an error is not put onto a broker: it cannot be changed in place afterwards."""
        wrong = [
            f"{found.msg} {found.hint} ({found.id})"
            for found in run_checks(tags=[TAG])
            if found.is_serious() and not found.is_silenced()
        ]
        if wrong and not looks_only:
            raise CommandError("\n".join([*wrong, "Nothing was declared."]), returncode=Exit.ERROR)
        for sentence in wrong:
            self.say(sentence)

    def _recreate(self, it: Declarer, topology: Topology, options: Options) -> Recreated:
        if it.inspector is not None:
            self.say(WATCHING)
        recreation = Recreation(it, topology, options["recreate"], move_to=options["move_to"])
        return recreation.run(lambda question: self.confirm(question, yes=options["yes"]))

    def _prune(self, it: Declarer, topology: Topology, options: Options) -> Deleted:
        if it.inspector is None:
            raise CommandError(
                'Which queues there are is told only by the management API: set RMQ_RETRY["MANAGEMENT_URL"], '
                "or name the queues: manage.py rmq_delete payments.charge.retry.30s",
                returncode=Exit.DRIFT,
            )
        names = stale(topology, it.inspector.queues())
        if names:
            self.confirm(f"Delete, where empty: {', '.join(names)}?", yes=options["yes"])
            self.say(WATCHING)
        return delete_queues(it, names)

    def _show(self, plan: Plan, address: str, *, done: bool) -> None:
        self.line(f"Broker {address} ({plan.server})")
        show_plan(self, plan)
        self.line(summary(plan, done=done))
        for item in plan.of(State.DIFFERS):
            if item.kind == "queue":
                self.say(
                    f"A queue cannot be changed in place, so {item.name!r} was left alone. To make it anew with its "
                    f"messages: manage.py rmq_declare --recreate {item.name}"
                )
            else:
                self.say(f"Exchange {item.name!r} was left alone. Write it as the broker has it, or take another name.")
        if plan.of(State.UNSEEN):
            self.say('Bindings are seen only through the management API: RMQ_RETRY["MANAGEMENT_URL"].')

    def _tell(self, recreated: Recreated | None, pruned: Deleted) -> None:
        if recreated is not None and recreated.done:
            self.line(f"Queue {recreated.queue!r} was made anew, with {recreated.moved} messages moved.")
        elif recreated is not None:
            self.line(f"Queue {recreated.queue!r} is as it is written: there was nothing to do.")
        for name in pruned.deleted:
            self.line(f"Queue {name!r} was deleted.")
        for name, reason in pruned.refused.items():
            self.line(f"Queue {name!r} was kept: {reason}", "WARNING")
