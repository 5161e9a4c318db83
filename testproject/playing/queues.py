"""The bank's queues on the broker: declared where no queue has their names, deleted at the end."""

from collections.abc import Iterator
from contextlib import contextmanager

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.deletion import delete_exchanges, delete_queues
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.handlers import registry
from django_rmq_retry.management.command import open_declarer
from django_rmq_retry.topology.declarations import Topology
from django_rmq_retry.topology.plan import Plan, PlanState
from testproject.playing.ending import Trouble, fail

CLAIM = "bank-demo.begins"
TAKEN = (
    "{broker} has {names} already, and the demo changes no existing queue. Name a virtual host of "
    "the demo's own, as RMQ_URL=amqp://user:password@host:5672/bank-demo (`rabbitmqctl add_vhost bank-demo` makes it), "
    "or leave RMQ_URL out. If a killed demo left them, `testproject/manage.py rmq_delete --all --force` "
    "with the same RMQ_URL deletes them, with their messages."
)


@contextmanager
def declared() -> Iterator[None]:
    """Declare the bank's topology on a broker that has none of it, and delete it afterwards."""
    topology = registry.topology()
    with open_declarer() as declarer:
        _claim(declarer)
        _refuse_others(declarer.plan(topology), declarer.session.access.shown)
        done = declarer.declare(topology)
    try:
        problems = [item.problem for item in done.items if item.problem]
        if problems:
            raise Trouble(f"The bank's queues could not be made: {' '.join(problems)}")
        yield
    finally:
        _delete(topology)


def _delete(topology: Topology) -> None:
    """Delete the queues with their messages. An unreachable broker must not hide why the demo ends."""
    try:
        with open_declarer() as declarer:
            delete_queues(declarer, [one.name for one in topology.queues.values() if not one.existing], force=True)
            delete_exchanges(declarer, [one.name for one in topology.exchanges.values() if not one.existing])
    except RmqRetryError as error:
        fail(f"The bank's queues may be left on the broker: {error}")


def _claim(declarer: Declarer) -> None:
    """Let only one demo look for existing queues and declare its own, until its session ends."""
    try:
        declarer.session.ask(lambda channel, done: channel.queue_declare(CLAIM, exclusive=True, callback=done))
    except Refusal as refusal:
        raise Trouble(
            f"{declarer.session.access.shown}: another demo begins there, or {refusal.sentence()}"
        ) from refusal


def _refuse_others(plan: Plan, broker: str) -> None:
    named = [item for item in plan.items if item.kind != "binding" and not getattr(item.declaration, "existing", False)]
    unseen = [item.problem for item in named if item.state is PlanState.REFUSED]
    if unseen:
        raise Trouble(f"{broker}: {' '.join(unseen)}")
    names = [item.name for item in named if item.state is not PlanState.CREATE]
    if names:
        raise Trouble(TAKEN.format(broker=broker, names=", ".join(names)))
