"""A queue whose handler is gone stays in sight with its messages, and is deleted by a command."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Exchange, Exponential, Queue, RetryThenPark, handler
from django_rmq_retry.admin import broker_look
from django_rmq_retry.declared import rows
from django_rmq_retry.health.problems import Queues
from django_rmq_retry.models import Declared
from django_rmq_retry.testing import isolated_handlers
from tests.commands.running import Exit, run
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both(embedded=pytest.mark.nightly), pytest.mark.django_db]

POLICY = RetryThenPark(attempts=2, backoff=Exponential(10))
OLD = {f"shop.broken{end}" for end in ("", ".retry.10s", ".quarantine", ".parked")}
NEW = {name.replace("broken", "repaired") for name in OLD}
MOVE = ("rmq_declare", "--recreate", "shop.broken", "--move-to", "shop.repaired", "--yes", "--publishers-stopped")
Named = Callable[..., None]


@pytest.fixture(autouse=True)
def url(broker_url: str, settings: Any) -> Any:
    settings.RMQ_RETRY = {"URL": broker_url}
    return settings


@pytest.fixture
def named() -> Iterator[Named]:
    """Gives the project's one handler a queue, and takes the one that it had."""
    stages: list[Any] = []

    def name(queue: Queue | str, **options: Any) -> None:
        if stages:
            stages.pop().__exit__(None, None, None)
        stages.append(isolated_handlers())
        stages[-1].__enter__()

        @handler(queue, policy=POLICY, **options)
        def mend(message: Delivery) -> None:
            """Nothing."""

    yield name
    for stage in stages:
        stage.__exit__(None, None, None)


@pytest.fixture
def renamed(named: Named) -> Named:
    """Declared as shop.broken, then renamed and declared as shop.repaired."""
    named("shop.broken")
    assert run("rmq_declare").code == Exit.DONE
    named("shop.repaired")
    assert run("rmq_declare").code == Exit.DONE
    return named


def put(channel: BlockingChannel, queue: str, count: int = 1) -> None:
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    wait_until(lambda: ready(channel, queue) == count)


def ready(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def known() -> set[str]:
    return set(Declared.objects.filter(kind="queue").values_list("name", flat=True))


@pytest.mark.usefixtures("renamed")
def test_a_renamed_queue_with_messages_is_a_problem_until_they_are_moved(amqp: BlockingChannel, vhost: Vhost) -> None:
    put(amqp, "shop.broken", 3)
    amqp.basic_consume("shop.repaired", lambda *_: None)
    checked = run("rmq_status", "--check")
    said = "abandoned, 3 messages, no consumer: manage.py rmq_declare --recreate shop.broken --move-to NEW"

    assert (checked.code, checked.out) == (Exit.UNHEALTHY, f"FAIL shop.broken: {said}\n")
    assert ["shop.broken", "work", "3", "0", "✕ abandoned, 3 messages, no consumer"] in run("rmq_status").lines
    level = next(one for one in run("rmq_status", "--json").data["queues"] if one["name"] == "shop.broken")
    assert (level["abandoned"], level["problems"]) == (True, [said])

    kept = run("rmq_delete", "shop.broken", "--yes")
    assert kept.code == Exit.PARTLY
    assert "Queue 'shop.broken' was kept: it holds 3 messages." in kept.out
    assert ready(amqp, "shop.broken") == 3

    asked = run(*MOVE[:-1])
    assert (asked.code, ready(amqp, "shop.broken")) == (Exit.UNCONFIRMED, 3)
    assert "Are all publishers by its name stopped? No terminal to confirm on. Pass --publishers-stopped." in asked.err

    moved = run(*MOVE)
    assert moved.code == Exit.DONE
    assert ["3 messages of the abandoned queue 'shop.broken' were moved."] in moved.lines
    assert (set(vhost.queues()), known()) == (NEW, NEW)
    assert run("rmq_status", "--check").out == "OK\n"


@pytest.mark.usefixtures("renamed")
def test_an_empty_abandoned_queue_is_a_remark_with_the_command_that_deletes_it(vhost: Vhost) -> None:
    ran = run("rmq_status")
    remark = "! abandoned, empty: manage.py rmq_delete shop.broken"

    assert [line[4] for line in ran.lines if line[0] in OLD] == [remark]
    assert [line[4] for line in run("rmq_status", "--all").lines if line[0] in OLD] == [remark] * 4
    assert "3 of them beside an abandoned queue" in ran.out
    assert ran.lines[0] == ["0 problems, 1 warning."]
    assert run("rmq_status", "--check").out == "OK with 1 warning: shop.repaired: no consumer reads this queue\n"
    assert run("rmq_delete", "shop.broken", "--yes").code == Exit.DONE
    assert (set(vhost.queues()), known()) == (NEW, NEW)
    assert [line for line in run("rmq_status").lines if line[0] in OLD] == []
    assert run("rmq_delete", "shop.broken", "--yes").code == Exit.USAGE


@pytest.mark.usefixtures("renamed")
def test_waiting_and_parked_messages_move_to_the_new_queues(amqp: BlockingChannel, vhost: Vhost) -> None:
    put(amqp, "shop.broken.retry.10s", 2)
    put(amqp, "shop.broken.parked")
    put(amqp, "shop.broken.quarantine")

    kept = run("rmq_delete", "shop.broken", "--yes")
    assert "Queue 'shop.broken' was kept: 2 messages in 'shop.broken.retry.10s' come back to it." in kept.out
    assert "shop.broken" in vhost.queues()

    assert run(*MOVE).code == Exit.DONE
    counts = {name: ready(amqp, f"shop.repaired{name}") for name in ("", ".retry.10s", ".parked", ".quarantine")}
    assert counts == {"": 1, ".retry.10s": 2, ".parked": 1, ".quarantine": 0}
    assert set(vhost.queues()) == NEW


def test_a_queue_is_kept_until_its_unknown_waits_have_expired(
    named: Named, amqp: BlockingChannel, vhost: Vhost
) -> None:
    named(Queue("shop.broken"))
    run("rmq_declare")
    put(amqp, "shop.broken.retry.10s")
    with isolated_handlers():

        @handler("shop.repaired", policy=RetryThenPark(attempts=2, backoff=Exponential(99)))
        def mend(message: Delivery) -> None:
            """Nothing."""

        ran = run(*MOVE)

    assert ran.code == Exit.PARTLY
    assert "Queue 'shop.broken' was kept: 1 message in 'shop.broken.retry.10s' comes back to it." in ran.out
    assert ready(amqp, "shop.broken.retry.10s") == 1
    assert {"shop.broken", "shop.broken.retry.10s"} < set(vhost.queues())
    assert "shop.broken.parked" not in vhost.queues()


def test_no_message_arrives_in_an_abandoned_queue_while_it_is_moved(
    named: Named, amqp: BlockingChannel, vhost: Vhost
) -> None:
    shop = Exchange("shop", "topic")
    named(Queue("shop.broken", bindings=[shop.bind("broken.#")]))
    run("rmq_declare")
    put(amqp, "shop.broken")
    named(Queue("shop.repaired", bindings=[shop.bind("repaired.#")]))
    held = amqp.queue_declare("", exclusive=True).method.queue
    amqp.queue_bind(held, "shop", "broken.#")

    run(*MOVE)
    amqp.basic_publish("shop", "broken.again", b"{}", mandatory=True)

    wait_until(lambda: ready(amqp, held) == 1)
    assert (ready(amqp, "shop.repaired"), set(vhost.queues()) - {held}) == (1, NEW)


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recreate", "shop.broken"], "No handler uses the queue 'shop.broken'. Pass the queue for its messages"),
        (["--recreate", "shop.broken", "--move-to", "nowhere"], "There is no queue 'nowhere'."),
        (["--recreate", "shop.never", "--move-to", "shop.repaired"], "There is no queue 'shop.never'."),
        (["--recreate", "shop.broken", "--move-to", "shop.repaired.parked"], "'shop.repaired.parked' is"),
    ],
)
def test_moving_messages_needs_a_target_queue(words: list[str], said: str, vhost: Vhost) -> None:
    ran = run("rmq_declare", *words, "--yes")

    assert (ran.code, ran.err[: len(said)]) == (Exit.USAGE, said)
    assert set(vhost.queues()) == NEW | OLD


def test_a_failed_declaration_names_the_queues_created_before(renamed: Named, amqp: BlockingChannel) -> None:
    renamed("shop.fresh")
    amqp.basic_consume("shop.broken", lambda *_: None)
    ran = run("rmq_declare", "--recreate", "shop.broken", "--move-to", "shop.fresh", "--yes", "--publishers-stopped")

    assert ran.code != Exit.DONE
    assert "Created before this error, and kept: shop.fresh, " in ran.err


@pytest.mark.usefixtures("renamed")
def test_an_old_consumer_is_no_problem_and_its_queues_are_kept(amqp: BlockingChannel, vhost: Vhost) -> None:
    put(amqp, "shop.broken.retry.10s")
    put(amqp, "shop.broken")
    amqp.basic_qos(prefetch_count=1)
    amqp.basic_consume("shop.broken", lambda *_: None)

    assert run("rmq_status", "--check").code == Exit.DONE
    assert run("rmq_declare", "--prune", "--yes").code == Exit.DONE
    assert run(*MOVE).code == Exit.DRIFT
    assert set(vhost.queues()) == NEW | OLD


@pytest.mark.usefixtures("renamed")
def test_a_parked_queue_is_moved_alone_if_others_consume_its_work_queue(amqp: BlockingChannel, vhost: Vhost) -> None:
    put(amqp, "shop.broken.parked")
    amqp.basic_consume("shop.broken", lambda *_: None)
    move = ("rmq_declare", "--recreate", "shop.broken.parked", "--move-to")
    said = f"abandoned, 1 message, no consumer: manage.py {' '.join(move)} NEW"

    assert run("rmq_status", "--check").out == f"FAIL shop.broken.parked: {said}\n"
    assert run(*move, "shop.repaired", "--yes", "--publishers-stopped").code == Exit.DONE
    assert (ready(amqp, "shop.repaired.parked"), "shop.broken" in vhost.queues()) == (1, True)


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize("more", [[], ["--force"]])
def test_deleting_all_keeps_an_abandoned_queue_with_consumers(
    more: list[str], amqp: BlockingChannel, vhost: Vhost
) -> None:
    put(amqp, "shop.broken.parked")
    put(amqp, "shop.broken")
    amqp.basic_qos(prefetch_count=1)
    amqp.basic_consume("shop.broken", lambda *_: None)

    assert ["shop.broken", "work", "handed over"] in [
        [line[0], line[1], line[4].removeprefix("! ").split(",")[0]]
        for line in run("rmq_status").lines
        if line[0] in OLD
    ]
    ran = run("rmq_delete", "--all", *more, "--yes")
    assert (ran.code, set(vhost.queues()), known()) == (Exit.PARTLY, OLD, OLD)
    assert (
        "Queue 'shop.broken.parked' was kept: no handler of this project uses it, but 'shop.broken' has a consumer. "
        "Delete it by name: manage.py rmq_delete shop.broken.parked --force\n"
    ) in ran.out

    assert run("rmq_delete", "shop.broken", "--yes").code == Exit.DRIFT
    assert set(vhost.queues()) == OLD
    assert run("rmq_delete", "shop.broken", "--force", "--yes").code == Exit.DONE
    assert (set(vhost.queues()), known()) == (set(), set())


def test_abandoned_waiting_queues_are_pruned_without_the_management_api(
    named: Named, amqp: BlockingChannel, vhost: Vhost
) -> None:
    with isolated_handlers():

        @handler("shop.repaired", policy=RetryThenPark(attempts=4, backoff=Exponential(10, factor=3)))
        def mend(message: Delivery) -> None:
            """Nothing."""

        run("rmq_declare")
    named("shop.repaired")
    put(amqp, "shop.repaired.retry.90s")

    ran = run("rmq_declare", "--prune", "--yes")

    assert ran.code == Exit.PARTLY
    assert ["Queue 'shop.repaired.retry.30s' was deleted."] in ran.lines
    assert "Queue 'shop.repaired.retry.90s' was kept: it holds 1 message." in ran.out
    assert set(vhost.queues()) == known() == {*NEW, "shop.repaired.retry.90s"}


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize("part", ["vhost", "broker", "project"])
def test_queues_declared_in_another_virtual_host_are_not_abandoned_queues(part: str, vhost: Vhost) -> None:
    for row in Declared.objects.filter(name__in=OLD):
        setattr(row, part, "another")
        row.digest = Declared.digest_of(row.project, row.broker, row.vhost, row.kind, row.name)
        row.save()

    assert [line for line in run("rmq_status").lines if line[0] in OLD] == []
    assert run("rmq_delete", "shop.broken", "--yes").code == Exit.USAGE
    assert run("rmq_declare", "--prune", "--yes").code == Exit.DONE
    assert set(vhost.queues()) == NEW | OLD
    assert known() == NEW | OLD


@pytest.mark.usefixtures("renamed")
def test_a_deleted_abandoned_queue_is_hidden_and_then_forgotten(amqp: BlockingChannel) -> None:
    for name in OLD:
        amqp.queue_delete(name)

    assert [line for line in run("rmq_status").lines if line[0] in OLD] == []
    assert known() == NEW | OLD
    run("rmq_declare")
    assert known() == NEW


@pytest.mark.usefixtures("renamed")
def test_an_abandoned_queue_that_others_own_now_is_forgotten(named: Named, vhost: Vhost) -> None:
    named("shop.repaired", park=Queue("shop.broken", existing=True))
    assert run("rmq_delete", "shop.broken", "--yes").code == Exit.USAGE

    run("rmq_declare")
    named("shop.repaired")
    assert run("rmq_delete", "--all", "--yes").code == Exit.DONE

    assert set(vhost.queues()) == {"shop.broken"}


@pytest.mark.usefixtures("renamed")
def test_deleting_all_includes_abandoned_queues(vhost: Vhost) -> None:
    assert run("rmq_delete", "--all", "--yes").code == Exit.DONE
    assert (set(vhost.queues()), Declared.objects.count()) == (set(), 0)


def test_each_declared_row_records_queue_virtual_host_and_times(named: Named, vhost: Vhost) -> None:
    shop = Exchange("shop", "topic")
    named(Queue("shop.repaired", max_length=9, bindings=[shop.bind("a.#")]))
    run("rmq_declare")
    first = Declared.objects.get(name="shop.repaired")
    run("rmq_declare")
    again = Declared.objects.get(name="shop.repaired")
    parked, exchange = Declared.objects.get(name="shop.repaired.parked"), Declared.objects.get(kind="exchange")

    assert (again.pk, again.first_at, again.last_at > first.last_at) == (first.pk, first.first_at, True)
    assert (again.vhost, again.role, again.home, again.version) == (vhost.name, "work", "", "0.1.0")
    assert (again.arguments["x-max-length"], again.bindings) == (9, [["shop", "a.#", {}]])
    assert (parked.role, parked.home, exchange.name) == ("parked", "shop.repaired", "shop")
    assert "guest" not in again.broker


def test_declaring_without_the_tables_only_prints_a_warning(
    named: Named, vhost: Vhost, url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named("shop.repaired")
    monkeypatch.setattr(type(connection.introspection), "table_names", lambda *_: [])
    declared = run("rmq_declare")

    assert (declared.code, set(vhost.queues())) == (Exit.DONE, NEW)
    assert declared.err == (
        "The declared objects are not recorded in the database: "
        "the tables are missing in 'default': manage.py migrate\n"
    )
    deleted = run("rmq_delete", "shop.repaired.parked", "--yes")
    assert (deleted.code, deleted.err) == (
        Exit.DONE,
        (
            "Earlier declarations cannot be read from the database: "
            "the tables are missing in 'default': manage.py migrate\n"
        ),
    )
    url.RMQ_RETRY = {**url.RMQ_RETRY, "RECORDS": False}
    assert run("rmq_declare").err == ""


@pytest.mark.usefixtures("renamed")
def test_the_admin_shows_abandoned_queues(amqp: BlockingChannel) -> None:
    put(amqp, "shop.broken")
    broker_look.forget()
    broker_look.look()
    broker_look.remember(rows())
    seen = broker_look.look()
    broker_look.forget()
    told = {
        one.level.queue: [problem.row for problem in one.problems]
        for one in Queues(levels=seen.levels).judged()
        if one.level.abandoned
    }

    first = "first move the 1 message of shop.broken: manage.py rmq_declare --recreate shop.broken --move-to NEW"
    empty = [f"abandoned, empty; {first}"]
    assert told == {
        "shop.broken": [
            "abandoned, 1 message, no consumer: manage.py rmq_declare --recreate shop.broken --move-to NEW"
        ],
        "shop.broken.retry.10s": empty,
        "shop.broken.quarantine": empty,
        "shop.broken.parked": empty,
    }
