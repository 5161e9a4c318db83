"""``manage.py rmq_declare``: declare the topology on the broker, after showing the plan."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.core.checks import run_checks
from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.deletion import Deleted, delete_queues, stale
from django_rmq_retry.amqp.inspection import look
from django_rmq_retry.amqp.recreation import Doubt, QueueRemoval, Recreated, Recreation, RemovedQueue
from django_rmq_retry.arguments import plural
from django_rmq_retry.checks.settings import TAG
from django_rmq_retry.conf import settings
from django_rmq_retry.declared import BrokerPlace, abandoned_queues, save
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
from django_rmq_retry.management.plan_text import plan_as_data, show_plan, summary
from django_rmq_retry.models import Declared
from django_rmq_retry.topology.declarations import AbandonedQueue, Role, Topology
from django_rmq_retry.topology.plan import Plan, PlanState


class Command(RmqCommand):
    help = "Create the project's exchanges, queues and bindings that the broker does not have yet."
    examples = ("rmq_declare", "rmq_declare --check", "rmq_declare --recreate payments.charge")
    common = ("timeout",)

    def add_arguments(self, parser: CommandParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument(
            "--check", action="store_true", help="declare nothing; exit code 4 if anything is missing or differs"
        )
        mode.add_argument("--plan", action="store_true", help="declare nothing; show what would be created")
        mode.add_argument("--recreate", metavar="QUEUE", help="recreate a queue that differs, with its messages")
        mode.add_argument("--prune", action="store_true", help="afterwards delete waiting queues that no handler uses")
        parser.add_argument(
            "--move-to", metavar="QUEUE", help="with --recreate: move its messages to this queue permanently"
        )
        parser.add_argument(
            "--publishers-stopped",
            action="store_true",
            help="with --recreate: confirm that nothing is published by the queue's name until the command has ended; "
            "such messages would be lost although the broker confirms them. --yes does not confirm it",
        )
        add_json(parser)
        add_yes(parser)

    def run(self, options: Options) -> Exit | None:
        topology = registry.topology()
        known = remembered(self) if options["recreate"] or options["prune"] else []
        self._check_queue(topology, known or [], options)
        if known is None and options["prune"]:
            self._check_sight()
        looks_only = options["check"] or options["plan"]
        self._run_checks(looks_only=looks_only)
        with open_declarer(timeout=options["timeout"]) as declarer:
            plan = declarer.plan(topology) if looks_only else declarer.declare(topology)
            abandoned = abandoned_queues(known or [], topology, BrokerPlace.of(declarer.session))
            recreated = None
            if options["recreate"]:
                with self._saying_what_was_created(plan):
                    recreated = self._recreate(declarer, topology, abandoned, options)
            if recreated is not None:
                plan = declarer.plan(topology)
            pruned = self._prune(declarer, topology, abandoned, options) if options["prune"] else Deleted()
            if not looks_only and (why := save(declarer, topology, plan)):
                self.say(f"The declared objects are not recorded in the database: {why}")
            address = declarer.session.access.shown
        gone = pruned
        if isinstance(recreated, RemovedQueue):
            gone = Deleted(deleted=recreated.deleted, refused=recreated.kept)
        if options["json"]:
            self.document(
                "declare/1",
                broker=address,
                server=str(plan.server),
                written=not looks_only,
                items=list(plan_as_data(plan)),
                recreated=None if recreated is None else {"queue": recreated.queue, "moved": recreated.moved},
                deleted=gone.deleted,
                kept=gone.refused,
            )
        else:
            self._show(plan, address, done=not looks_only)
            self._report_changes(recreated, gone)
        if gone.refused:
            return Exit.PARTLY
        return Exit.DONE if (plan.fulfilled if options["check"] else plan.possible) else Exit.DRIFT

    @contextmanager
    def _saying_what_was_created(self, plan: Plan) -> Iterator[None]:
        """After an error, name the objects that were declared before it: they stay."""
        try:
            yield
        except Exception:
            created = [item.name for item in plan.of(PlanState.CREATE)]
            if created:
                self.say(f"Created before this error, and kept: {', '.join(created)}.")
            raise

    def _run_checks(self, *, looks_only: bool) -> None:
        """Refuse to declare if ``check`` reports an error: a queue cannot be changed in place afterwards."""
        wrong = [
            f"{problem.msg} {problem.hint} ({problem.id})"
            for problem in run_checks(tags=[TAG])
            if problem.is_serious() and not problem.is_silenced()
        ]
        if wrong and not looks_only:
            raise CommandError("\n".join([*wrong, "Nothing was declared."]), returncode=Exit.ERROR)
        for sentence in wrong:
            self.say(sentence)

    def _check_sight(self) -> None:
        if settings().operators.management_url is None:
            raise CommandError(
                "Neither the database nor the management API lists the abandoned queues. Run `manage.py migrate`, set "
                'RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"], or delete the queues by name: '
                "manage.py rmq_delete payments.charge.retry.30s",
                returncode=Exit.DRIFT,
            )

    def _check_queue(self, topology: Topology, known: Sequence[Declared], options: Options) -> None:
        queue, target = options["recreate"], topology.queues.get(options["move_to"] or "")
        for option in ("move_to", "publishers_stopped"):
            if options[option] and not queue:
                raise usage_error(f"--{option.replace('_', '-')} requires --recreate.")
        if target is not None and target.role in (Role.WAITING, Role.QUARANTINE, Role.PARKED):
            raise usage_error(
                f"{target.name!r} is a {target.role} queue, which no handler reads. Pass a work queue to --move-to."
            )
        if not queue or queue in topology.queues:
            return
        abandoned = [row.name for row in known if row.kind == "queue"]
        if queue not in abandoned:
            check_known("queue", [queue], topology.queues)
        if not options["move_to"]:
            raise usage_error(f"No handler uses the queue {queue!r}. Pass the queue for its messages: --move-to QUEUE.")
        check_known("queue", [options["move_to"]], topology.queues)

    def _recreate(
        self, declarer: Declarer, topology: Topology, abandoned: Sequence[AbandonedQueue], options: Options
    ) -> Recreated | RemovedQueue:
        if declarer.inspector is not None:
            self.say(WATCHING)
        queue, move_to = options["recreate"], options["move_to"]

        def confirm(doubt: Doubt) -> None:
            option = "--publishers-stopped" if doubt is Doubt.PUBLISHERS else "--yes"
            self.confirm(doubt, yes=options[option.removeprefix("--").replace("-", "_")], option=option)

        if queue in topology.queues:
            return Recreation(declarer, topology, queue, move_to=move_to).run(confirm)
        family = [one for one in abandoned if queue in (one.queue.name, one.home)]
        check_known("queue on this broker", [queue], [one.queue.name for one in family])
        return QueueRemoval(declarer, family, _targets(family, topology, queue, move_to)).run(queue, confirm)

    def _prune(
        self, declarer: Declarer, topology: Topology, abandoned: Sequence[AbandonedQueue], options: Options
    ) -> Deleted:
        """Delete unused queues, except those that an old consumer of an abandoned queue still needs to wait in."""
        names = stale(topology, declarer.inspector.queues()) if declarer.inspector is not None else []
        for one in abandoned:
            home = look(declarer.session, None, one.home) if one.home and one.home not in topology.queues else None
            used = home is not None and home.consumers
            if one.queue.role in (Role.WAITING, Role.QUARANTINE) and not used and declarer.there(one.queue):
                names.append(one.queue.name)
        names = sorted(set(names))
        if names:
            self.confirm(f"Delete, if empty: {', '.join(names)}? {Doubt.PUBLISHERS}", yes=options["yes"])
            if declarer.inspector is not None:
                self.say(WATCHING)
        return delete_queues(declarer, names)

    def _show(self, plan: Plan, address: str, *, done: bool) -> None:
        self.line(f"Broker {address} ({plan.server})")
        show_plan(self, plan)
        self.line(summary(plan, done=done))
        for item in plan.of(PlanState.DIFFERS):
            if getattr(item.declaration, "existing", False):
                self.say(
                    f"{item.kind.capitalize()} {item.name!r} is declared elsewhere (existing=True) and is never "
                    f"changed ({item.text}). Write its definition as the broker has it, or ask its owner to change it."
                )
            elif item.kind == "queue":
                self.say(
                    f"A queue cannot be changed in place, and {item.name!r} differs. To recreate it with its messages, "
                    "stop its consumers and its publishers, then run: "
                    f"manage.py rmq_declare --recreate {item.name}; if it is declared elsewhere, write "
                    f"Queue({item.name!r}, existing=True)."
                )
            else:
                self.say(
                    f"Exchange {item.name!r} is not changed, because another program may own it ({item.text}). "
                    "Define it as the broker has it, with existing=True if one does, or rename it."
                )
        if plan.of(PlanState.UNSEEN):
            self.say('Bindings are visible only through the management API: RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"].')

    def _report_changes(self, recreated: Recreated | RemovedQueue | None, pruned: Deleted) -> None:
        if isinstance(recreated, RemovedQueue):
            self.line(f"{_moved(recreated.moved, f' of the abandoned queue {recreated.queue!r}')}.")
        elif recreated is not None and recreated.done:
            self.line(f"Queue {recreated.queue!r} was recreated, and {_moved(recreated.moved)}.")
        elif recreated is not None:
            self.line(f"Queue {recreated.queue!r} already matches its definition.")
        for name in pruned.deleted:
            self.line(f"Queue {name!r} was deleted.")
        for name, reason in pruned.refused.items():
            self.line(f"Queue {name!r} was kept: {reason}", "WARNING")


def _targets(family: Sequence[AbandonedQueue], topology: Topology, queue: str, move_to: str) -> dict[str, str]:
    """Return each abandoned queue's target; a wait starts from the beginning in the waiting queue of the same name."""
    parks = {work_queue.queue.name: work_queue.park for work_queue in registry.work_queues()}
    parked: dict[str, str] = {}
    for one in family:
        name, role = one.queue.name, one.queue.role
        like = move_to + name.removeprefix(queue)
        if role is Role.WAITING:
            target = like if name != like and like in topology.queues else None
        elif role is Role.PARKED:
            target = parks.get(move_to)
        else:
            target = move_to
        if target is not None:
            parked[name] = target
    return parked


def _moved(count: int, whose: str = "") -> str:
    return f"{plural(count, 'message')}{whose} {'was' if count == 1 else 'were'} moved"
