"""External objects (existing=True) are compared, and never created, changed or deleted, wherever they are named."""

from collections.abc import Mapping
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from django_rmq_retry import (
    DeadLetter,
    Delivery,
    Exchange,
    Exponential,
    Ladder,
    Queue,
    RetryThenPark,
    StopTheLine,
    WaitQueue,
    handler,
)
from tests.amqp.declared import arguments
from tests.commands.running import Exit, run
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both, pytest.mark.django_db]

MAIN = Exchange("main-exchange", existing=True)
AGAIN = Exchange("retry-exchange", "fanout", existing=True)
LOOP = {"x-dead-letter-exchange": "retry-exchange"}
WAIT = {"x-message-ttl": 3000, "x-dead-letter-exchange": "main-exchange"}


@pytest.fixture(autouse=True)
def url(broker_url: str, settings: Any) -> Any:
    settings.RMQ_RETRY = {"URL": broker_url}
    return settings


def handle(queue: Queue | str, **options: Any) -> None:
    @handler(queue, **options)
    def cash(message: Delivery) -> None:
        """Nothing."""


@pytest.fixture
def theirs(amqp: BlockingChannel) -> None:
    """The loop that another team has declared: classic queues, retried after three seconds."""
    amqp.exchange_declare("main-exchange", "direct", durable=True)
    amqp.exchange_declare("retry-exchange", "fanout", durable=True)
    for name, said in (("main-queue", LOOP), ("retry-queue", WAIT), ("parking-queue", {})):
        amqp.queue_declare(name, durable=True, arguments=said)
    amqp.queue_bind("main-queue", "main-exchange", "cash")
    amqp.queue_bind("retry-queue", "retry-exchange")


@pytest.fixture
def taken_over() -> None:
    """The project's words for it, where nothing is of its own."""
    handle(
        Queue("main-queue", existing=True, bindings=[MAIN.bind("cash")]),
        policy=RetryThenPark(
            attempts=4, via=DeadLetter(exchange=AGAIN, queue=Queue("retry-queue", existing=True), after=3)
        ),
        park=Queue("parking-queue", existing=True),
    )


QUEUES: Mapping[str, Mapping[str, object]] = {"main-queue": LOOP, "retry-queue": WAIT, "parking-queue": {}}
EXCHANGES = {"main-exchange", "retry-exchange"}


def rows(*options: str) -> dict[str, list[str]]:
    """The line of each queue and exchange: its sign and what is said."""
    found = [line for line in run("rmq_declare", *options).lines if len(line) == 4]
    return {line[2]: [line[0].strip(), line[3]] for line in found}


@pytest.mark.usefixtures("theirs", "taken_over")
def test_external_queues_show_their_real_types_and_no_difference() -> None:
    ran = run("rmq_declare")

    assert ran.code == Exit.DONE
    assert [line[1:] for line in ran.lines[1:-1]] == [
        ["exchange", "main-exchange", "direct durable existing"],
        ["exchange", "retry-exchange", "fanout durable existing"],
        ["queue", "main-queue", "work classic existing"],
        ["queue", "retry-queue", "waiting classic existing ttl 3000 ms"],
        ["queue", "parking-queue", "parked classic existing"],
        ["binding", "main-exchange → main-queue by 'cash'", ""],
        ["binding", "retry-exchange → retry-queue", ""],
    ]
    assert ran.lines[-1] == ["5 unchanged, 2 not visible."]


@pytest.mark.usefixtures("theirs", "taken_over")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["rmq_declare"], Exit.DONE),
        (["rmq_delete", "--all", "--yes"], Exit.NOTHING),
        (["rmq_delete", "--all", "--force", "--yes"], Exit.NOTHING),
        (["rmq_delete", "retry-queue", "--force", "--yes"], Exit.USAGE),
        (["rmq_delete", "parking-queue", "--force", "--yes"], Exit.USAGE),
        (["rmq_declare", "--recreate", "main-queue", "--yes"], Exit.DRIFT),
        (["rmq_declare", "--recreate", "retry-queue", "--yes"], Exit.DRIFT),
        (["rmq_declare", "--recreate", "parking-queue", "--yes"], Exit.DRIFT),
    ],
)
def test_no_command_changes_an_external_queue(
    command: list[str], code: Exit, vhost: Vhost, amqp: BlockingChannel
) -> None:
    amqp.queue_unbind("retry-queue", "retry-exchange")
    amqp.confirm_delivery()

    assert run(*command).code == code
    assert arguments(vhost) == QUEUES
    assert set(vhost.exchanges()) == EXCHANGES
    amqp.basic_publish("main-exchange", "cash", b"{}", mandatory=True)
    with pytest.raises(UnroutableError):
        amqp.basic_publish("retry-exchange", "", b"{}", mandatory=True)


@pytest.mark.usefixtures("taken_over")
def test_a_missing_external_queue_is_reported_and_not_created(vhost: Vhost) -> None:
    ran = run("rmq_declare")

    assert ran.code == Exit.DRIFT
    assert rows()["retry-queue"] == ["!", "It is external (existing=True) and does not exist."]
    assert (vhost.queues(), vhost.exchanges()) == ({}, {})


@pytest.mark.usefixtures("taken_over", "theirs")
def test_arguments_that_retries_need_are_compared(amqp: BlockingChannel) -> None:
    for name, said in (("retry-queue", {**WAIT, "x-message-ttl": 60_000}), ("main-queue", {})):
        amqp.queue_delete(name)
        amqp.queue_declare(name, durable=True, arguments={**said, "x-max-length": 9})

    ran = run("rmq_declare", "--check")

    assert ran.code == Exit.DRIFT
    assert rows("--check")["retry-queue"] == ["!", "x-message-ttl: here 3000, broker 60000"]
    assert rows("--check")["main-queue"] == ["!", "x-dead-letter-exchange: here retry-exchange, broker none"]
    differs = "x-dead-letter-exchange: here retry-exchange, broker none"
    assert f"Queue 'main-queue' is declared elsewhere (existing=True) and is never changed ({differs})." in ran.err
    assert "--recreate" not in ran.err


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        (Queue("q", existing=True), ["=", "work classic existing"]),
        (Queue("q", existing=True, type=None), ["=", "work classic existing"]),
        (Queue("q", existing=True, type="classic"), ["=", "work classic existing"]),
        (Queue("q", existing=True, type="quorum"), ["!", "x-queue-type: here quorum, broker classic"]),
        (Queue("q", existing=True, max_length=5), ["!", "x-max-length: here 5, broker 7"]),
        (Queue("q", existing=True, arguments={"x-expires": 9}), ["!", "x-expires: here 9, broker none"]),
    ],
    ids=["nothing", "no type", "classic", "quorum", "a length", "an argument"],
)
def test_only_arguments_that_are_declared_are_compared(queue: Queue, said: list[str], amqp: BlockingChannel) -> None:
    amqp.queue_declare("q", durable=True, arguments={"x-max-length": 7})
    handle(queue)

    assert rows("--check")["q"] == said


def test_an_external_quorum_queue_is_shown_as_quorum(amqp: BlockingChannel) -> None:
    amqp.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 7})
    handle(Queue("q", existing=True))

    assert rows("--check")["q"] == ["=", "work quorum existing"]


def test_an_ordered_handler_needs_a_queue_with_a_single_active_consumer(amqp: BlockingChannel) -> None:
    amqp.queue_declare("q", durable=True)
    handle(Queue("q", existing=True), policy=StopTheLine())

    assert rows("--check")["q"] == ["!", "x-single-active-consumer: here true, broker none"]


def test_a_dead_letter_routing_key_that_misroutes_retries_is_reported(amqp: BlockingChannel) -> None:
    amqp.queue_declare("q", durable=True, arguments={**LOOP, "x-dead-letter-routing-key": "else"})
    via = DeadLetter(exchange=AGAIN, queue="again", after=3)
    handle(Queue("q", existing=True), policy=RetryThenPark(via=via))

    assert rows("--check")["q"] == ["!", "x-dead-letter-routing-key: here none, broker else"]


@pytest.mark.parametrize("existing", [False, True], ids=["ours", "theirs"])
@pytest.mark.parametrize(
    ("kind", "binding", "said"),
    [
        ("direct", None, ["="]),
        ("fanout", None, ["!", "x-dead-letter-routing-key: here q, broker none"]),
        ("direct", "paid", ["!", "x-dead-letter-routing-key: here q, broker none"]),
    ],
    ids=["the queue's name", "a fanout", "another key"],
)
def test_a_retry_queue_needs_no_key_if_every_message_in_it_has_the_queues_name(
    kind: str, binding: str | None, existing: bool, said: list[str], amqp: BlockingChannel
) -> None:
    back: dict[str, Any] = {"x-message-ttl": 3000, "x-dead-letter-exchange": ""}
    amqp.queue_declare("q.wait", durable=True, arguments=back)
    bindings = [Exchange("shop", "direct").bind(binding)] if binding else []
    wait = Queue("q.wait", existing=True) if existing else Queue("q.wait", type=None)
    via = DeadLetter(exchange=Exchange("q.dlx", kind), queue=wait, after=3, back="")
    handle(Queue("q", type=None, bindings=bindings), policy=RetryThenPark(via=via))

    row = rows("--check")["q.wait"]

    assert row[: len(said)] == said


def test_an_exchange_of_another_type_is_reported(amqp: BlockingChannel) -> None:
    amqp.exchange_declare("theirs", "topic", arguments={"alternate-exchange": "rest"})
    theirs = Exchange("theirs", "fanout", existing=True)
    handle(Queue("q", bindings=[theirs.bind()]))

    assert rows("--check")["theirs"] == ["!", "type: here fanout, broker topic"]


OURS = Exchange("ours")
PLACES: Mapping[str, Any] = {
    "the parked queue": lambda: handle("q", park=Queue("theirs", existing=True)),
    "the queue of DeadLetter": lambda: handle(
        "q",
        policy=RetryThenPark(via=DeadLetter(exchange="again", queue=Queue("theirs", existing=True), after=3)),
    ),
    "the queue of WaitQueue": lambda: handle(
        "q", policy=RetryThenPark(via=WaitQueue("again", Queue("theirs", existing=True)))
    ),
    "the exchange of WaitQueue": lambda: handle(
        "q", policy=RetryThenPark(via=WaitQueue(Exchange("theirs", existing=True), "again"))
    ),
    "the way back": lambda: handle(
        Queue("q", bindings=[OURS.bind("q")]),
        policy=RetryThenPark(
            via=DeadLetter(
                exchange="again", queue="again", after=3, back=Exchange("theirs", existing=True), back_key="k"
            )
        ),
    ),
    "an alternate exchange": lambda: handle(
        Queue("q", bindings=[Exchange("ours", alternate=Exchange("theirs", existing=True)).bind("q")])
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", [["--all", "--yes"], ["--all", "--yes", "--force"]])
def test_an_external_queue_is_left_unchanged_in_every_position(
    place: str, command: list[str], vhost: Vhost, amqp: BlockingChannel
) -> None:
    """Whatever else the project has of its own comes and goes."""
    PLACES[place]()
    assert rows("--plan")["theirs"][0] == "!"
    assert "theirs" not in {*vhost.queues(), *vhost.exchanges()}

    if place in ("the parked queue", "the queue of DeadLetter", "the queue of WaitQueue"):
        amqp.queue_declare("theirs", durable=True, arguments={"x-max-length": 3})
    else:
        amqp.exchange_declare("theirs", "direct", durable=True)
    run("rmq_declare")
    assert "q" in vhost.queues()
    run("rmq_delete", *command)

    assert {*vhost.queues(), *vhost.exchanges()} == {"theirs"}


def test_the_settings_can_mark_a_waiting_queue_as_external(url: Any, vhost: Vhost, amqp: BlockingChannel) -> None:
    handle("q", policy=RetryThenPark(attempts=3, backoff=Exponential(10), via=Ladder([10])))
    url.RMQ_RETRY = {**url.RMQ_RETRY, "TOPOLOGY": [Queue("q.retry.10s", existing=True)]}
    amqp.queue_declare("q.retry.10s", durable=True)

    assert rows()["q.retry.10s"] == ["=", "waiting classic existing ttl 10000 ms"]
    assert run("rmq_delete", "--all", "--yes").code == Exit.DONE
    assert set(vhost.queues()) == {"q.retry.10s"}


def test_waiting_queues_beside_an_external_queue_are_not_pruned(amqp: BlockingChannel) -> None:
    amqp.queue_declare("theirs", durable=True)
    amqp.queue_declare("theirs.retry.7s", durable=True)
    handle(Queue("theirs", existing=True))

    assert run("rmq_delete", "theirs.retry.7s", "--yes").code == Exit.USAGE


@pytest.mark.usefixtures("taken_over")
def test_a_missing_external_queue_is_its_owners_to_create() -> None:
    told = run("rmq_status")

    (row,) = [line for line in told.lines if line[1:2] == ["work"]]
    assert row[-1] == "✕ it does not exist: its owner has to create it"
    assert "is external (existing=True), and the broker lacks it." in told.lines[1][2]
