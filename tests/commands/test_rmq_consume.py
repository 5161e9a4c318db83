"""The command as a process, against a real broker."""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp.transport import ASLEEP_SECONDS
from tests.commands.running import run
from tests.shop.running import ROOT, Shop
from tests.tooling import databases
from tests.tooling.filled import Own
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

ORDERS, LEDGER = "shop.orders", "shop.ledger"
Send = Callable[..., None]
NO_BROKER = "amqp://app:sesame@127.0.0.1:1/"


@pytest.fixture
def shop(broker_url: str, tmp_path: Path, amqp: BlockingChannel) -> Shop:
    """The shop with its queues declared."""
    amqp.queue_declare(ORDERS, durable=True)
    amqp.queue_declare("shop.orders.parked", durable=True)
    amqp.queue_declare("shop.ledger.parked", durable=True)
    waiting = {"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": ORDERS}
    amqp.queue_declare("shop.orders.retry.200ms", durable=True, arguments=waiting)
    amqp.queue_declare(LEDGER, durable=True, arguments={"x-single-active-consumer": True})
    return Shop(url=broker_url, notes=tmp_path / "notes")


@pytest.fixture(params=["plain", "async"])
def either(shop: Shop, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The shop, with plain handlers and with async ones: both keep the same promises."""
    if request.param == "async":
        monkeypatch.setenv("SHOP_ASYNC", "1")
    return shop


@pytest.fixture
def no_broker(tmp_path: Path) -> Shop:
    """The shop with a broker that is not there."""
    return Shop(url=NO_BROKER, notes=tmp_path / "notes")


@pytest.fixture
def send(amqp: BlockingChannel) -> Send:
    """Send the shop what to do."""

    def send(*words: str, queue: str = ORDERS, **more: object) -> None:
        for word in words:
            amqp.basic_publish("", queue, json.dumps({"do": word, **more}).encode())

    return send


def depth(amqp: BlockingChannel, queue: str = ORDERS) -> int:
    return int(amqp.queue_declare(queue, passive=True).method.message_count)


def touched(path: Path) -> bool:
    path.touch()
    return True


def written(path: Path) -> Any:
    """The liveness file's content, once it is there."""
    return json.loads(wait_until(lambda: path.read_text() if path.exists() else "", what=str(path)))


@pytest.mark.usefixtures("charge")
def test_an_unknown_queue_gets_the_nearest_name_suggested() -> None:
    told = run("rmq_consume", "payments.chrge")

    assert (told.code, told.out) == (2, "")
    assert told.err == "There is no queue 'payments.chrge'. Did you mean payments.charge?"


def test_a_project_without_handlers_cannot_consume() -> None:
    told = run("rmq_consume")

    assert (told.code, "no installed app has a handlers.py" in told.err) == (6, True)


@pytest.mark.usefixtures("charge")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--threads", "0"), "argument --threads: takes a whole number of at least 1, not '0'"),
        (("--max-runtime", "-1"), "argument --max-runtime: takes seconds of at least 0, not -1"),
        (("--liveness-file", "/none/x"), "--liveness-file cannot be written: /none is not a writable folder."),
        (("--async", "0"), "argument --async: takes a whole number of at least 1, not '0'"),
        (("--async", "5000"), "argument --async: takes 1 to 1000, not 5000"),
        (
            ("--async", "5"),
            "--async is for queues whose handlers are all async def, and there is none here. Omit it, or use --thr",
        ),
        (("--reload", "--processes", "2"), "--reload supports one process only. Omit --processes."),
    ],
)
def test_invalid_options_are_refused(words: tuple[str, ...], said: str) -> None:
    assert said in run("rmq_consume", *words).err


def test_burst_empties_every_queue_and_ends(either: Shop, send: Send, amqp: BlockingChannel) -> None:
    send("a", "park", "b")
    send("c", queue=LEDGER)
    told = either.run("rmq_consume", "--burst")

    assert told.returncode == 0
    assert sorted(either.noted("end")) == ["end a", "end b"]
    assert (either.noted("post"), depth(amqp)) == (["post c"], 0)
    assert depth(amqp, "shop.orders.parked") == 1
    assert "event=park queue=shop.orders handler=tests.shop.handlers.order" in told.stdout
    assert told.stderr == ""


@pytest.mark.parametrize("kind", databases.KINDS)
def test_a_start_without_its_database_leaves_all_messages_in_their_queues(
    shop: Shop, send: Send, amqp: BlockingChannel, kind: str
) -> None:
    """Whether an operator has paused a queue is not known before the database answers."""
    if why := databases.KINDS[kind].undriven():
        pytest.skip(why)
    send("a")
    send("b", queue="shop.orders.parked")
    closed = {**databases.KINDS[kind].settings(), "HOST": "127.0.0.1", "PORT": "1"}
    with shop.running("rmq_consume", **Own(settings=closed).environment) as running:
        running.says("Parked messages stay in their queues: The database 'default' does not answer")
        running.says("No message is taken until the pauses of the queues have been read")
        running.signal()
        code = running.code()

    assert (code, shop.noted()) == (0, [])
    assert (depth(amqp), depth(amqp, "shop.orders.parked")) == (1, 1)
    assert "Traceback" not in running.text + running.errors
    # Only MariaDB is asked by Django's checks.
    unchecked = (
        "The checks skip the types of model fields, because a database does not answer: 'default' (Can't connect"
    )
    assert running.errors.startswith(unchecked if kind == databases.MARIADB and django.VERSION >= (6, 1) else "")
    assert running.errors.count("\n") == (kind == databases.MARIADB and django.VERSION >= (6, 1))


def test_a_system_check_that_needs_an_unavailable_database_ends_the_command(shop: Shop) -> None:
    if why := databases.KINDS[databases.POSTGRESQL].undriven():
        pytest.skip(why)
    closed = {**databases.KINDS[databases.POSTGRESQL].settings(), "HOST": "127.0.0.1", "PORT": "1"}
    apps = {"SHOP_APPS": "tests.shop tests.shop.asking"}
    told = shop.run("rmq_consume", "--burst", **Own(settings=closed).environment, **apps)

    assert (told.returncode, told.stdout) == (1, "")
    said = "CommandError: A system check queries a database while 'default' does not answer: "
    assert told.stderr.startswith(said)
    assert told.stderr.endswith(". Start the database, or pass --skip-checks.\n")
    assert told.stderr.count("\n") == 1


def test_a_system_check_that_lacks_a_table_ends_the_command_before_any_handler(shop: Shop, send: Send) -> None:
    send("a")
    told = shop.run("rmq_consume", "--burst", SHOP_APPS="tests.shop tests.shop.lacking")

    assert (told.returncode, told.stdout, shop.noted("end")) == (1, "", [])
    assert told.stderr.endswith("OperationalError: no such table: shop_limit\n")
    assert "does not answer" not in told.stderr


def test_the_first_signal_lets_handlers_finish_and_acks_their_messages(
    either: Shop, send: Send, amqp: BlockingChannel, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    send("wait", **{"for": str(go)})
    with either.running("rmq_consume") as consumer:
        wait_until(lambda: either.noted("begin"))
        consumer.signal()
        consumer.says(
            "finishing 1 message (max 30 s). Signal again to stop now; unfinished messages return to the queue."
        )
        go.touch()

        assert consumer.code() == 0
    assert (either.noted("end"), depth(amqp)) == (["end wait"], 0)


def test_the_second_signal_ends_at_once(either: Shop, send: Send, amqp: BlockingChannel) -> None:
    send("wait", **{"for": "/nonexistent"})
    with either.running("rmq_consume") as consumer:
        wait_until(lambda: either.noted("begin"))
        consumer.signal(signal.SIGINT)
        consumer.says("Stopping")
        consumer.signal(signal.SIGINT)

        assert consumer.code() == 130
    wait_until(lambda: depth(amqp) == 1, what="the message is back in its queue")


def test_handlers_that_do_not_finish_in_time_are_reported(either: Shop, send: Send, amqp: BlockingChannel) -> None:
    send("wait", **{"for": "/nonexistent"})
    with either.running("rmq_consume", "--shutdown-timeout", "0.1") as consumer:
        wait_until(lambda: either.noted("begin"))
        consumer.signal()

        assert consumer.code() == 1
    assert "did not finish" in consumer.text
    wait_until(lambda: depth(amqp) == 1, what="the message is back in its queue")


def test_max_messages_limits_the_handled_messages_exactly(either: Shop, send: Send, amqp: BlockingChannel) -> None:
    send(*"abcdefgh")
    told = either.run("rmq_consume", "--max-messages", "3")

    assert (told.returncode, len(either.noted("end")), depth(amqp)) == (0, 3, 5)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetch_counts_waiting_retries_as_unacked(
    shop: Shop, send: Send, amqp: BlockingChannel, tmp_path: Path, prefetch: int
) -> None:
    go = tmp_path / "go"
    send(*["wait"] * 5, **{"for": str(go)})
    with shop.running("rmq_consume", "--threads", "1", "--prefetch", str(prefetch)) as consumer:
        wait_until(lambda: shop.noted("begin") and depth(amqp) == 5 - prefetch, what="the hand is full")
        send("one more")

        wait_until(lambda: depth(amqp) == 6 - prefetch, what="no room for one more")
        go.touch()
        wait_until(lambda: len(shop.noted("end")) == 6)
        consumer.signal()
        assert consumer.code() == 0


def test_max_time_ends_the_consumer(shop: Shop) -> None:
    told = shop.run("rmq_consume", "--max-runtime", "0.2")

    assert (told.returncode, "the limit of 0.2 s is reached" in told.stdout) == (0, True)


def test_the_consumer_ends_in_order_above_its_memory_limit(shop: Shop, send: Send, amqp: BlockingChannel) -> None:
    send("eat", mb=300)
    told = shop.run("rmq_consume", "--max-memory", "250")

    assert (told.returncode, shop.noted("end"), depth(amqp)) == (0, ["end eat"], 0)
    assert "MB of memory are in use, and the limit is 250 MB" in told.stdout


def test_only_the_queues_named_are_consumed(shop: Shop, send: Send, amqp: BlockingChannel) -> None:
    send("a")
    send("b", queue=LEDGER)
    shop.run("rmq_consume", LEDGER, "--burst")

    assert (shop.noted(), depth(amqp)) == (["post b"], 1)


def test_an_unavailable_broker_is_logged_once_per_wait(no_broker: Shop) -> None:
    with no_broker.running("rmq_consume") as consumer:
        consumer.says("event=disconnected", times=3)
        consumer.signal()
        code = consumer.code()
    lost = [line for line in consumer.text.splitlines() if "event=disconnected" in line]

    assert code == 0
    assert "No broker since " in lost[2]
    assert "(attempt 3)" in lost[2]
    assert len(consumer.text.splitlines()) == len(lost) + 2
    assert "sesame" not in consumer.text + consumer.errors


def test_without_waiting_for_the_broker_the_consumer_exits_with_3(no_broker: Shop) -> None:
    told = no_broker.run("rmq_consume", "--fail-fast")

    assert (told.returncode, "event=failed" in told.stdout) == (3, True)


def test_a_wrong_password_is_reported_without_showing_it(shop: Shop, broker_url: str) -> None:
    told = Shop(url=broker_url.replace("guest:guest@", "guest:sesame@"), notes=shop.notes).run("rmq_consume")

    assert told.returncode == 3
    assert "it refused the user name or password" in told.stdout
    assert "sesame" not in told.stdout + told.stderr


def test_a_missing_queue_is_reported_with_the_declare_command(shop: Shop, amqp: BlockingChannel) -> None:
    amqp.queue_delete(LEDGER)
    told = shop.run("rmq_consume")

    assert (told.returncode, "manage.py rmq_declare" in told.stdout) == (4, True)


def test_missing_retry_queues_are_reported_before_a_message_is_consumed(
    shop: Shop, send: Send, amqp: BlockingChannel
) -> None:
    for gone in ("shop.orders.parked", "shop.orders.retry.200ms"):
        amqp.queue_delete(gone)
    send("a")
    told = shop.run("rmq_consume")

    assert told.returncode == 4
    assert "queue 'shop.orders.parked', queue 'shop.orders.retry.200ms'. No message was taken." in told.stdout
    assert (shop.noted(), depth(amqp)) == ([], 1)


def test_a_handler_that_exits_its_thread_does_not_stop_the_consumer(either: Shop, send: Send) -> None:
    send("exit", "a")
    told = either.run("rmq_consume", "--burst")

    assert (told.returncode, either.noted("end")) == (0, ["end a"])


def test_json_lines_are_json_from_every_logger(shop: Shop, send: Send) -> None:
    send("warn", "fail", "park")
    told = shop.run("rmq_consume", "--burst", "--json-logs")
    lines = [json.loads(line) for line in told.stdout.splitlines()]

    assert {"started", "connected", "ack", "retry", "park", "stopping"} <= {line.get("event") for line in lines}
    assert [line["msg"] for line in lines if line.get("logger") == "shop"] == ["stock is low"]


def test_quiet_mode_logs_only_problems(shop: Shop, send: Send) -> None:
    send("a", "park")
    told = shop.run("rmq_consume", "--burst", "-v0")

    assert ["event=park" in line for line in told.stdout.splitlines()] == [True]


def test_tracebacks_of_failures_are_logged_on_request(shop: Shop, send: Send) -> None:
    send("park")
    told = shop.run("rmq_consume", "--burst", "-v2")

    assert told.stdout.count('trace="Traceback (most recent call last):\\n') == 1


def test_the_logging_of_the_project_is_kept(shop: Shop, send: Send) -> None:
    send("park")
    told = shop.run("rmq_consume", "--burst", SHOP_LOGS="1")

    assert {line.split()[0] for line in told.stdout.splitlines()} == {"OWN"}
    assert "OWN ERROR park tests.shop.handlers.order" in told.stdout


def test_an_exit_reason_is_on_stderr_if_the_project_logging_may_hide_it(no_broker: Shop) -> None:
    told = no_broker.run("rmq_consume", "--fail-fast", SHOP_LOGS="1")

    assert (told.returncode, told.stderr.startswith("CommandError: No broker (")) == (3, True)


def test_the_liveness_file_shows_the_state_of_the_consumer(shop: Shop, send: Send, tmp_path: Path) -> None:
    path, go = tmp_path / "live", tmp_path / "go"
    send("a")
    send("fail until", queue=LEDGER, **{"for": str(go)})
    with shop.running("rmq_consume", "--liveness-file", str(path)) as consumer:
        wait_until(lambda: written(path)["halts"], what="the line is halted")
        told = written(path)
        mode = stat.S_IMODE(path.stat().st_mode)
        go.touch()
        wait_until(lambda: not written(path)["halts"], what="the line continues")
        consumer.signal()
        consumer.code()

    assert (told["pid"], told["connected"], told["queues"], mode) == (consumer.pid, True, [ORDERS, LEDGER], 0o600)
    assert told["broker"].startswith("RabbitMQ ")
    assert (told["counts"]["ack"], told["halts"][0]["queue"]) == (1, LEDGER)
    assert told["halts"][0]["error"] == "OutOfStock: not yet"
    assert not path.exists()


def test_the_liveness_file_of_a_stopped_process_goes_stale(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "live"
    with shop.running("rmq_consume", "--liveness-file", str(path)) as consumer:
        written(path)
        consumer.signal(signal.SIGSTOP)
        os.utime(path, (1, 1))
        with pytest.raises(AssertionError):
            wait_until(lambda: path.stat().st_mtime > 1, timeout=2.5)
        consumer.signal(signal.SIGCONT)

        wait_until(lambda: path.stat().st_mtime > 1, what="it is written again")


@pytest.mark.nightly
def test_a_process_that_was_frozen_begins_nothing_that_another_one_has_handled(
    shop: Shop, send: Send, vhost: Vhost, tmp_path: Path
) -> None:
    """It has four more messages in hand; RabbitMQ has taken it for dead."""
    go = tmp_path / "go"
    send("wait", **{"for": str(go)})
    with shop.running("rmq_consume", "--threads", "1") as consumer:
        wait_until(lambda: len(shop.noted("begin")) == 1)
        send(*"abcd")
        wait_until(lambda: vhost.queues()[ORDERS].get("messages_unacknowledged") == 5, timeout=30)
        consumer.signal(signal.SIGSTOP)
        over = time.monotonic() + ASLEEP_SECONDS
        wait_until(lambda: vhost.close_connections(f"{consumer.pid}@"), timeout=30)
        go.touch()
        other = shop.run("rmq_consume", "--burst")
        wait_until(lambda: time.monotonic() > over, timeout=30)
        consumer.signal(signal.SIGCONT)
        consumer.says("and it may be handled twice")
        consumer.says("Connected", times=2)
        consumer.signal()
        consumer.code()

    assert other.returncode == 0
    assert sorted(shop.noted("end")) == ["end a", "end b", "end c", "end d", "end wait", "end wait"]


@pytest.mark.parametrize(("words", "processes"), [((), 1), (("--processes", "2"), 2)])
def test_a_closed_log_pipe_does_not_stop_the_consumer(
    shop: Shop, send: Send, words: tuple[str, ...], processes: int
) -> None:
    reader, writer = os.pipe()
    command = shop.command(("rmq_consume", *words))
    process = subprocess.Popen(
        command, env=shop.environment(), cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    said = b""
    while said.count(b"Connected") < processes:
        said += os.read(reader, 65536)
    os.close(reader)
    send("a", "park", "b")
    wait_until(lambda: len(shop.noted("end")) == 2)
    process.terminate()
    _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_a_killed_process_of_several_is_replaced(either: Shop, send: Send, tmp_path: Path) -> None:
    path = tmp_path / "live"
    with either.running("rmq_consume", "--processes", "2", "--liveness-file", str(path)) as consumer:
        first = [one["pid"] for one in written(path)["processes"]]
        os.kill(first[0], signal.SIGKILL)
        consumer.says("was ended by SIGKILL; a new one starts in")
        consumer.says("Connected", times=3)
        send(*"abcdef")
        wait_until(lambda: len(either.noted("end")) == 6)
        consumer.signal()
        code = consumer.code()

    assert (code, len(set(first)), path.exists()) == (0, 2, False), consumer.text + consumer.errors
    assert first[0] not in either.pids()


@pytest.mark.slow
def test_a_child_process_above_its_memory_limit_is_replaced(shop: Shop, send: Send) -> None:
    with shop.running("rmq_consume", "--processes", "2", "--max-memory", "250") as consumer:
        consumer.says("Connected", times=2)
        send("eat", mb=300)
        consumer.says("has ended; a new one starts in")
        consumer.says("Connected", times=3)
        consumer.signal()

        assert consumer.code() == 0
    assert shop.noted("end") == ["end eat"]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "end"), [("die", "was ended by SIGKILL"), ("leave", "ended with exit code 0")])
def test_a_message_that_kills_its_worker_does_not_end_the_supervisor(
    either: Shop, send: Send, way: str, end: str
) -> None:
    send(way)
    with either.running("rmq_consume", "--processes", "2") as consumer:
        consumer.says(f"{end}; a new one starts in", times=2)
        consumer.signal()

        # The message may end one more that has just taken it.
        assert consumer.code() in {0, 1, 137}


@pytest.mark.slow
def test_several_processes_end_when_all_queues_are_empty(either: Shop, send: Send, amqp: BlockingChannel) -> None:
    send(*"abcdefghij")
    told = either.run("rmq_consume", "--processes", "2", "--burst")

    assert (told.returncode, len(either.noted("end")), depth(amqp)) == (0, 10, 0)


@pytest.mark.slow
def test_a_code_change_lets_handlers_finish_and_restarts(shop: Shop, send: Send, tmp_path: Path) -> None:
    code, go = tmp_path / "fresh" / "handlers.py", tmp_path / "go"
    code.parent.mkdir()
    (code.parent / "__init__.py").touch()
    code.write_text("from tests.shop.handlers import order, post\n")
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    with shop.running("rmq_consume", "--reload", SHOP_APPS="fresh", PYTHONPATH=path) as consumer:
        send("wait", **{"for": str(go)})
        wait_until(lambda: shop.noted("begin"))
        stopping = "Stopping (the code has changed, or Ctrl-C): finishing 1 message"
        # Again and again, for the reloader does not say when it begins to look.
        wait_until(lambda: touched(code) and stopping in consumer.text, timeout=20, what=stopping)
        go.touch()
        consumer.says("Connected", times=2)
        os.killpg(consumer.pid, signal.SIGINT)

        assert consumer.code() == 0
    assert shop.noted("end") == ["end wait"]
    assert len(set(shop.pids())) == 1
