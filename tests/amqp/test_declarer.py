"""The Declarer on a real broker: it looks, creates what is missing, and leaves alone what differs."""

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Exchange, Queue
from django_rmq_retry.amqp import Refusal, Secret
from django_rmq_retry.amqp.declarer import Declarer, of_others
from django_rmq_retry.amqp.management_api import Inspector
from django_rmq_retry.amqp.session import NamedDeclaration
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.topology import ExchangeDeclaration, QueueDeclaration, Topology
from django_rmq_retry.topology.plan import Difference, Plan, PlanState
from tests.amqp.declared import session_on
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract


@pytest.fixture
def declarer(broker_url: str) -> Iterator[Declarer]:
    with session_on(broker_url) as session:
        yield Declarer(session)


@pytest.fixture
def seeing(vhost: Vhost) -> Iterator[Declarer]:
    with session_on(vhost.url) as session:
        yield Declarer(session, Inspector(url=Secret(vhost.management.url), vhost=vhost.name))


def queue(name: str = "orders", /, **arguments: object) -> Topology:
    return Topology(queues={name: QueueDeclaration(name=name, arguments=arguments)})


def states(plan: Plan) -> dict[str, PlanState]:
    return {item.name: item.state for item in plan.items}


ORDERS = topology_of(extra=[Queue("orders", bindings=[Exchange("shop", "topic").bind("order.#")])])


def test_bindings_are_seen_through_the_management_api_only(declarer: Declarer, seeing: Declarer) -> None:
    declarer.declare(ORDERS)

    assert states(declarer.plan(ORDERS))["shop → orders by 'order.#'"] is PlanState.UNSEEN
    assert states(seeing.plan(ORDERS))["shop → orders by 'order.#'"] is PlanState.SAME
    assert seeing.plan(ORDERS).fulfilled


def test_a_fanout_exchange_of_others_is_bound_whatever_the_key(seeing: Declarer, amqp: BlockingChannel) -> None:
    amqp.exchange_declare("retry", "fanout", durable=True)
    amqp.queue_declare("waiting", durable=True)
    theirs = Exchange("retry", "fanout", existing=True)
    wanted = topology_of(extra=[Queue("waiting", existing=True, type="classic", bindings=[theirs.bind()])])
    assert states(seeing.plan(wanted))["retry → waiting"] is PlanState.MISSING

    # pika takes the queue's name if no key is given.
    amqp.queue_bind("waiting", "retry")

    assert seeing.plan(wanted).fulfilled


def test_every_differing_argument_is_reported_and_nothing_is_changed(declarer: Declarer, vhost: Vhost) -> None:
    had: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-message-ttl": 60000,
        "x-dead-letter-exchange": "late",
        "x-max-length": 5,
    }
    declarer.declare(queue(**had))
    wanted = queue(**{"x-queue-type": "quorum", "x-message-ttl": 30000, "x-single-active-consumer": True})

    plan = declarer.declare(wanted)

    assert plan.items[0].state is PlanState.DIFFERS
    assert set(plan.items[0].differences) == {
        Difference(argument="x-message-ttl", here=30000, broker=60000),
        Difference(argument="x-single-active-consumer", here=True, broker=None),
        Difference(argument="x-dead-letter-exchange", here=None, broker="late"),
        Difference(argument="x-max-length", here=None, broker=5),
    }
    assert vhost.queues()["orders"]["arguments"] == had


def test_the_management_api_shows_the_same_differences(declarer: Declarer, seeing: Declarer) -> None:
    declarer.declare(queue(**{"x-queue-type": "classic", "x-message-ttl": 60000, "x-max-priority": 4}))
    wanted = queue(**{"x-queue-type": "quorum", "x-message-ttl": 30000})

    by_trial, by_row = declarer.plan(wanted).items[0], seeing.plan(wanted).items[0]

    assert set(by_trial.differences) == set(by_row.differences)
    assert "x-queue-type: here quorum, broker classic" in by_trial.text


def test_a_classic_queue_is_the_same_with_and_without_its_type(declarer: Declarer, seeing: Declarer) -> None:
    declarer.declare(queue())

    for one in (declarer, seeing):
        assert one.plan(queue(**{"x-queue-type": "classic"})).fulfilled
        assert one.plan(queue()).fulfilled


def test_an_exchange_of_another_type_differs(declarer: Declarer, amqp: BlockingChannel) -> None:
    amqp.exchange_declare("shop", "direct", durable=True, arguments={"alternate-exchange": "rest"})

    item = declarer.declare(topology_of(extra=[Exchange("shop", "topic", durable=False)])).items[0]

    assert item.text == (
        "type: here topic, broker direct; durable: here false, broker true; alternate-exchange: here none, broker rest"
    )


def test_an_unknown_exchange_type_is_reported_and_the_rest_is_declared(declarer: Declarer) -> None:
    strange = Exchange("strange", "x-nonesuch")

    plan = declarer.declare(topology_of(extra=[strange, Queue("orders", bindings=[strange.bind("a")])]))

    assert states(plan)["strange"] is PlanState.REFUSED
    assert "x-nonesuch" in plan.items[0].problem
    assert states(plan)["orders"] is PlanState.CREATE
    assert states(plan)["strange → orders by 'a'"] is PlanState.REFUSED


@pytest.mark.parametrize(
    "gone",
    [
        QueueDeclaration(name="gone", existing=True),
        QueueDeclaration(name="gone", existing=True, arguments={"x-queue-type": "quorum"}),
        QueueDeclaration(name="gone", existing=True, arguments={"x-queue-type": "classic", "x-max-length": 3}),
        ExchangeDeclaration(name="gone", existing=True),
    ],
    ids=["no type", "quorum", "classic", "an exchange"],
)
def test_an_external_object_deleted_during_the_check_is_not_declared(
    gone: NamedDeclaration, declarer: Declarer, vhost: Vhost
) -> None:
    with pytest.raises(Refusal):
        of_others(declarer.session, gone, None)

    assert (vhost.exchanges(), vhost.queues()) == ({}, {})


def test_the_management_api_shows_the_policy_of_an_external_queue(seeing: Declarer, vhost: Vhost) -> None:
    vhost.management.call("PUT", f"queues/{vhost.name}/inbox", {"durable": True, "arguments": {"x-max-length": 7}})
    policy = {"pattern": "inbox", "definition": {"dead-letter-exchange": "letters"}, "apply-to": "queues"}
    vhost.management.call("PUT", f"policies/{vhost.name}/letters", policy)

    def told(**arguments: object) -> str:
        inbox = Queue("inbox", existing=True, arguments=arguments)
        item = seeing.plan(topology_of(extra=[inbox])).items[0]
        return item.text or f"{item.state.value} {item.type}"

    said = {"x-dead-letter-exchange": "letters", "x-max-length": 7}
    wait_until(lambda: told(**said) == "same classic", what="the policy takes effect")
    assert told(**{"x-max-length": 8}) == "x-max-length: here 8, broker 7"


def test_without_the_configure_right_an_external_queue_is_not_compared(vhost: Vhost) -> None:
    user = vhost.name
    vhost.management.call("PUT", f"users/{user}", {"password": "pw", "tags": ""})
    rights = {"configure": "^$", "write": ".*", "read": ".*"}
    vhost.management.call("PUT", f"permissions/{vhost.name}/{user}", rights)
    vhost.management.call("PUT", f"queues/{vhost.name}/inbox", {"durable": True})
    address = vhost.url.partition("@")[2]
    with session_on(f"amqp://{user}:pw@{address}") as session:
        item = Declarer(session).plan(topology_of(extra=[Queue("inbox", existing=True, max_length=3)])).items[0]
    vhost.management.call("DELETE", f"users/{user}")

    assert (item.state, item.forbidden) == (PlanState.SAME, True)
    assert item.text == "Not compared: the user lacks the configure right on it."


def test_a_value_that_amqp_has_no_type_for_is_reported(declarer: Declarer) -> None:
    plan = declarer.declare(queue(**{"x-queue-type": "classic", "x-odd": object()}))

    assert plan.items[0].state is PlanState.REFUSED
    assert plan.items[0].problem.startswith("It cannot be sent: UnsupportedAMQPFieldException")


def test_a_queue_exclusive_to_another_connection_is_refused(declarer: Declarer, amqp: BlockingChannel) -> None:
    amqp.queue_declare("orders", exclusive=True)

    item = declarer.declare(queue()).items[0]

    assert item.state is PlanState.REFUSED
    assert "exclusive access to locked queue 'orders'" in item.problem


def test_a_missing_right_is_reported_with_user_right_and_object(vhost: Vhost) -> None:
    user = vhost.name
    vhost.management.call("PUT", f"users/{user}", {"password": "pw", "tags": ""})
    rights = {"configure": "^(orders|late)$", "write": "^$", "read": ".*"}
    vhost.management.call("PUT", f"permissions/{vhost.name}/{user}", rights)
    address = vhost.url.partition("@")[2]
    topology = queue("invoices") + queue("orders", **{"x-dead-letter-exchange": "late"})

    with session_on(f"amqp://{user}:pw@{address}") as session:
        items = {item.name: item for item in Declarer(session).declare(topology).items}
    vhost.management.call("DELETE", f"users/{user}")

    assert items["invoices"].problem == (
        f"The user '{user}' lacks the configure right on the queue 'invoices'. "
        "Grant it with `rabbitmqctl set_permissions`."
    )
    assert f"'{user}' lacks the write right on the exchange 'late'" in items["orders"].problem


def test_a_wrong_password_a_missing_vhost_and_a_closed_port_are_distinguished(broker_url: str) -> None:
    wrong = broker_url.replace(":guest@", ":wrong@")
    missing = broker_url + "-not-there"

    with pytest.raises(BrokerRefused, match="user name or password"), session_on(wrong):
        pass
    with pytest.raises(BrokerRefused, match="virtual host does not exist"), session_on(missing):
        pass
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1: Connection refused"):
        session_on("amqp://127.0.0.1:1").__enter__()


def test_the_next_host_is_tried_when_one_does_not_answer(broker_url: str) -> None:
    with session_on(broker_url.replace("@", "@127.0.0.1:1,")) as session:
        assert session.server.product == "RabbitMQ"
