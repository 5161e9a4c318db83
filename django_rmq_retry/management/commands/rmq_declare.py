"""``manage.py rmq_declare``: the topology onto the broker, plan first."""

from django.core.management.base import CommandParser

from django_rmq_retry import registry
from django_rmq_retry.broker.plans import Plan, State
from django_rmq_retry.management.base import Exit, Options, RmqCommand, add_json, add_yes
from django_rmq_retry.management.reaching import declarer
from django_rmq_retry.management.showing import plan_as_data, show_plan, summary


class Command(RmqCommand):
    help = "Create the exchanges, queues and bindings of the project that the broker does not have yet."
    examples = ("rmq_declare", "rmq_declare --check", "rmq_declare --recreate payments.charge")

    def add_arguments(self, parser: CommandParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--check", action="store_true", help="write nothing; exit code 4 if anything is to do")
        mode.add_argument("--plan", action="store_true", help="write nothing; show what would be done")
        add_json(parser)
        add_yes(parser)

    def run(self, options: Options) -> Exit | None:
        topology = registry.topology()
        with declarer() as it:
            address = it.session.access.shown
            looks_only = options["check"] or options["plan"]
            plan = it.plan(topology) if looks_only else it.declare(topology)
        if options["json"]:
            items = list(plan_as_data(plan))
            self.document("declare/1", broker=address, server=str(plan.server), written=not looks_only, items=items)
        else:
            self._show(plan, address, done=not looks_only)
        good = plan.fulfilled if options["check"] else plan.possible
        return Exit.DONE if good else Exit.DRIFT

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
