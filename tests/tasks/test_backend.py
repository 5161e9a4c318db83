"""Tasks are published by ``enqueue``, and run as messages of an ordinary handler."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from django_rmq_retry import (
    Breaker,
    Exponential,
    Fixed,
    InPlace,
    Ladder,
    Queue,
    Raw,
    RetryThenPark,
    apublish,
    errors,
    publish,
)
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.business_keys import readable_keys
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.tasks import discovery, known
from django_rmq_retry.tasks.api import InvalidTask, TaskResultStatus, task_backends, task_finished, task_started
from django_rmq_retry.testing import RmqTest
from tests.tasks.conftest import Load

HANDLER = "tasks.default"


def test_a_task_is_run_with_its_arguments(load: Load, rmq: RmqTest) -> None:
    work = load()

    result = work.send.enqueue(7, 1.5, rate=0.1, names=["ü", None], deep={"a": [True]})

    assert (result.status, result.backend, result.args) == (TaskResultStatus.READY, "default", [7, 1.5])
    assert rmq.drain() == 1
    [(args, kwargs)] = work.calls
    assert (args, kwargs) == ((7, 1.5), {"rate": 0.1, "names": ["ü", None], "deep": {"a": [True]}})
    assert (type(args[1]), type(kwargs["rate"])) == (float, float)


def test_its_message_has_the_path_as_type_and_readable_arguments(load: Load, rmq: RmqTest) -> None:
    work = load()

    result = work.mail.enqueue("a@b.example")

    [message] = rmq.published("tasks.emails")
    assert (message.type, message.id, message.queue) == ("tests.tasks.work.mail", result.id, "emails")
    assert json.loads(message.body) == {"task": "tests.tasks.work.mail", "args": ["a@b.example"], "kwargs": {}}


def test_a_task_of_another_queue_runs_there(load: Load, rmq: RmqTest) -> None:
    work = load()

    work.mail.using(queue_name="default").enqueue("a@b.example")
    rmq.drain()

    assert [one.handler for one in rmq.attempts()] == [HANDLER]
    assert work.calls == ["a@b.example"]


def test_an_async_task_is_run_and_enqueued_from_async_code(load: Load, rmq: RmqTest) -> None:
    work = load()

    asyncio.run(work.fetch.aenqueue("home"))
    rmq.drain()

    assert work.calls == ["home"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("raises", "ran"), [(True, []), (False, [((7,), {})])])
def test_a_task_is_sent_if_and_only_if_its_transaction_commits(
    load: Load, rmq: RmqTest, *, raises: bool, ran: list[Any]
) -> None:
    work = load(results=timedelta(days=1))

    def post() -> None:
        with transaction.atomic():
            result = work.send.enqueue(7)
            rmq.drain()
            assert work.calls == []
            assert work.send.get_result(result.id).status == TaskResultStatus.READY
            if raises:
                raise RuntimeError

    if raises:
        with pytest.raises(RuntimeError):
            post()
    else:
        post()
    rmq.drain()

    assert work.calls == ran


def test_run_after_delays_a_task(load: Load, rmq: RmqTest) -> None:
    work = load()

    work.send.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    rmq.advance(3500)
    assert work.calls == []
    rmq.advance(200)

    assert work.calls == [((), {})]


def test_priorities_are_those_of_the_queue(load: Load, rmq: RmqTest) -> None:
    queue = Queue("default", type="classic", max_priority=10)
    work = load(settings={"RMQ_RETRY": {"TOPOLOGY": [queue]}})
    assert task_backends["default"].supports_priority

    for priority in (-100, 0, 1, 50, 100):
        work.send.using(priority=priority).enqueue(priority)

    assert [one.properties.priority for one in rmq.published(HANDLER)] == [0, 5, 5, 8, 10]
    with pytest.raises(InvalidTask, match="Queue 'emails' has no priorities"):
        work.mail.using(priority=1)


def test_a_queue_without_priorities_refuses_one(load: Load) -> None:
    work = load()

    assert not task_backends["default"].supports_priority
    with pytest.raises(InvalidTask, match=r"Define Queue\('default', type='classic', max_priority=10\)"):
        work.send.using(priority=1)


def test_a_failed_task_is_retried_by_the_policy_of_its_queue_and_parked(load: Load, rmq: RmqTest) -> None:
    work = load(policies={"default": RetryThenPark(attempts=3, backoff=Fixed(60))})

    work.fail.enqueue("timeout")
    rmq.drain()

    parked = rmq.parked(HANDLER)
    assert rmq.waits == [60, 60]
    assert (parked.code, parked.attempts, str(parked.error)) == ("retries_exhausted", 3, "MailDown: timeout")
    assert parked.data == {"task": "tests.tasks.work.fail", "args": ["timeout"], "kwargs": {}}


def test_a_task_has_its_own_policy_in_a_queue_with_another_one(load: Load, rmq: RmqTest) -> None:
    work = load(policies={"default": RetryThenPark(attempts=3, backoff=Fixed(60))})

    work.fail_twice.enqueue()
    rmq.drain()

    assert rmq.waits == [7]
    assert rmq.parked(HANDLER).attempts == 2
    queues = {name for name in _topology() if name.startswith("default.retry")}
    assert queues == {"default.retry.1m", "default.retry.7s"}


def test_a_task_may_choose_its_retry_and_knows_its_attempt(load: Load, rmq: RmqTest) -> None:
    work = load()

    work.retry_once.enqueue()
    rmq.drain()

    assert (work.calls, rmq.waits) == ([1, 2], [11])


def test_two_tasks_that_fail_alike_are_two_groups(load: Load, rmq: RmqTest) -> None:
    work = load(policies={"default": RetryThenPark(attempts=1)})

    for task in (work.fail, work.fail_twice, work.fail):
        task.enqueue()
    rmq.drain()

    groups = [one.headers["rmq-retry-fingerprint"] for one in rmq.all_parked(HANDLER)]
    assert len(set(groups)) == 2


@pytest.mark.parametrize(
    "path",
    [
        "tests.tasks.work.plain",
        "tests.tasks.work.Holder.nested",
        "os.system",
        "builtins.eval",
        "tests.tasks.work.send.func",
        "",
        "../../etc/passwd",
        "x" * 100_000,
        "\0",
    ],
)
def test_nothing_but_a_task_is_called_by_a_message(load: Load, rmq: RmqTest, path: str) -> None:
    work = load()

    publish({"task": path, "args": [], "kwargs": {}}, routing_key="default")
    rmq.drain()

    parked = rmq.parked(HANDLER)
    assert (parked.code, parked.attempts, work.calls) == ("no_handler", 1, [])
    assert parked.reason.startswith("There is no task ")


def test_a_renamed_task_is_parked_with_its_path_and_a_hint(load: Load, rmq: RmqTest) -> None:
    load()

    publish({"task": "tests.tasks.old.fetch", "args": ["home"], "kwargs": {}}, routing_key="default")
    rmq.drain()

    assert rmq.parked(HANDLER).reason == (
        "There is no task 'tests.tasks.old.fetch'. Did it become 'tests.tasks.work.fetch'? Edit the task of the "
        "message and requeue it."
    )


@pytest.mark.parametrize("arguments", [{"args": []}, {"args": [1, 2, 3]}, {"args": [1], "kwargs": {"three": 3}}])
def test_arguments_that_no_attempt_could_take_are_parked_at_once(
    load: Load, rmq: RmqTest, arguments: dict[str, Any]
) -> None:
    load()

    publish({"task": "tests.tasks.work.add", "kwargs": {}, **arguments}, routing_key="default")
    rmq.drain()

    parked = rmq.parked(HANDLER)
    assert (parked.code, parked.attempts) == ("permanent", 1)
    assert parked.reason.startswith("Task tests.tasks.work.add does not take the arguments of the message: ")


@pytest.mark.parametrize(
    "body",
    [
        b'{"task":"tests.tasks.work.send","args":' + b"[" * 1000 + b"]" * 1000 + b',"kwargs":{}}',
        b'{"task":"tests.tasks.work.send","args":[NaN],"kwargs":{}}',
        b'{"task":"tests.tasks.work.send","args":[],"args":[1],"kwargs":{}}',
        b'{"task":"tests.tasks.work.send","args":[]}',
        b'{"task":"tests.tasks.work.send","args":{"iban":"DE02"},"kwargs":{}}',
        b'{"task":7,"args":[],"kwargs":{}}',
        b'{"task":"tests.tasks.work.send","args":[],"kwargs":{},"more":1}',
        b'["tests.tasks.work.send",[],{}]',
        b"null",
        b"",
        b"\x80\x04K\x07.",
    ],
)
def test_a_body_that_is_no_task_is_parked_and_nothing_runs(load: Load, rmq: RmqTest, body: bytes) -> None:
    work = load()

    publish(body, routing_key="default", codec=Raw())
    rmq.drain()

    parked = rmq.parked(HANDLER)
    assert (parked.code, parked.body, work.calls) == ("undecodable_body", body, [])
    # The reason is read by operators who may not see bodies.
    assert "DE02" not in parked.reason


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (float("nan"), errors.UnencodableData),
        (float("inf"), errors.UnencodableData),
        (1e-320, errors.UnencodableData),
        (nested(100), errors.UnencodableData),
        (object(), TypeError),
        ({1, 2}, TypeError),
        (b"\xff", ValueError),
        ("x" * 20_000_000, errors.UnencodableData),
        ([0] * 600_000, errors.UnencodableData),
    ],
)
def test_what_a_consumer_would_park_is_refused_where_it_is_enqueued(
    load: Load, rmq: RmqTest, argument: Any, error: type[Exception]
) -> None:
    work = load()

    with pytest.raises(error):
        work.send.enqueue(argument)

    assert rmq.published() == []


def test_ten_megabytes_of_arguments_arrive(load: Load, rmq: RmqTest) -> None:
    work = load()

    work.send.enqueue("x" * 10_000_000)
    rmq.drain()

    [((text,), _)] = work.calls
    assert len(text) == 10_000_000


def test_signals_tell_of_each_run_and_of_its_end(load: Load, rmq: RmqTest) -> None:
    work = load(policies={"default": RetryThenPark(attempts=2)})
    told: list[Any] = []

    def started(task_result: Any, **_: Any) -> None:
        told.append((task_result.status, task_result.attempts))

    def finished(task_result: Any, **_: Any) -> None:
        told.append((task_result.status, [one.exception_class for one in task_result.errors]))

    task_started.connect(started)
    task_finished.connect(finished)
    try:
        work.send.enqueue()
        work.fail.enqueue()
        rmq.drain()
    finally:
        task_started.disconnect(started)
        task_finished.disconnect(finished)

    [kind] = told[-1][1]
    assert kind.__name__ == "MailDown"
    states = TaskResultStatus
    assert sorted(told[:-1], key=str) == sorted(
        [(states.RUNNING, 1), (states.SUCCESSFUL, []), (states.RUNNING, 1), (states.RUNNING, 2)], key=str
    )
    assert told[-1][0] == states.FAILED


def test_a_receiver_that_raises_fails_no_task(load: Load, rmq: RmqTest) -> None:
    work = load()

    def raising(**_: Any) -> None:
        raise RuntimeError("a receiver")

    task_finished.connect(raising)
    try:
        work.send.enqueue()
        rmq.drain()
    finally:
        task_finished.disconnect(raising)

    assert [one.verdict.name for one in rmq.attempts()] == ["ack"]


def test_a_generator_is_no_task(load: Load) -> None:
    work = load()

    with pytest.raises(InvalidTask, match="contains 'yield'"):
        work.task(_yielding)


def _yielding() -> Any:
    yield 1


def test_a_message_of_another_sender_needs_no_id(load: Load, rmq: RmqTest) -> None:
    work = load()

    asyncio.run(apublish({"task": "tests.tasks.work.send", "args": [1], "kwargs": {}}, routing_key="default"))
    rmq.drain()

    assert work.calls == [((1,), {})]


def test_a_wrong_setting_is_an_error_of_enqueue(load: Load) -> None:
    work = load(results=7)

    with pytest.raises(ImproperlyConfigured, match="takes a timedelta such as"):
        work.send.enqueue()


def test_the_carrier_of_a_queue_decides_whether_tasks_can_be_delayed(load: Load) -> None:
    work = load(policies={"default": RetryThenPark(via=InPlace(), backoff=Fixed(1))})

    assert not task_backends["default"].supports_defer
    with pytest.raises(InvalidTask, match="Backend does not support run_after"):
        work.send.using(run_after=timezone.now())


def test_a_long_own_policy_needs_no_more_waiting_queues_than_the_broker_should_have(load: Load, rmq: RmqTest) -> None:
    work = load(policies={"default": RetryThenPark(attempts=4, via=Ladder(), backoff=Exponential(10, factor=3))})
    own = RetryThenPark(attempts=30, backoff=Exponential(1, factor=1.5))
    vars(work.fail.func)["rmq_policy"] = own

    work.fail.enqueue()
    rmq.drain()

    assert rmq.parked(HANDLER).attempts == 30
    assert len([name for name in _topology() if name.startswith("default.retry")]) <= 16


def _topology() -> list[str]:
    return list(registry.topology().queues)


def test_a_breaker_pauses_the_queue_of_tasks(load: Load, rmq: RmqTest) -> None:
    work = load(breakers={"default": Breaker(on=Exception, probe_after=30)})

    for _ in range(3):
        work.fail.enqueue()
    rmq.advance(1)
    assert work.calls == ["fail"]
    rmq.advance(40)

    assert len(work.calls) == 2
    assert not rmq.all_parked(HANDLER)


def test_async_tasks_share_the_event_loop_of_the_process(load: Load, rmq: RmqTest) -> None:
    work = load()

    for _ in range(3):
        work.loop_of.enqueue()
    rmq.drain()

    assert len(work.calls) == 3
    assert len({id(one) for one in work.calls}) == 1


def test_a_queue_of_async_tasks_alone_is_worked_on_side_by_side(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    work = load()
    assert not registry.subscription(HANDLER).asynchronous
    monkeypatch.setattr(known, "_tasks", {"fetch": work.fetch, "mail": work.mail})
    discovery.register()

    assert registry.subscription(HANDLER).asynchronous
    assert not registry.subscription("tasks.emails").asynchronous


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", ["turn", "wait_forever"])
def test_a_task_over_the_timeout_of_its_queue_is_ended_and_retried(
    name: str, alone: bool, load: Load, rmq: RmqTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryThenPark(attempts=2, backoff=Fixed(10))
    work = load(policies={"default": policy}, timeouts={"default": 0.05})
    task = getattr(work, name)
    if alone:
        monkeypatch.setattr(known, "_tasks", {task.module_path: task})
        discovery.register()

    task.enqueue()
    rmq.drain()

    assert (work.calls.count(name), work.calls.count("ended")) == (2, 2 if name == "wait_forever" else 0)
    assert rmq.waits == [10]
    assert rmq.parked(HANDLER).reason == (
        "Gave up after 2 attempts: DeadlineExceeded: Handler tasks.default ran for longer than its timeout of 0.05 s"
    )


@pytest.mark.parametrize("name", ["turn", "wait_forever"])
def test_a_task_sent_to_a_queue_of_the_other_kind_of_tasks_ends_at_its_timeout(
    name: str, load: Load, rmq: RmqTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = load(policies={"emails": RetryThenPark(attempts=1)}, timeouts={"emails": 0.05})
    sent, other = getattr(work, name), work.fetch if name == "turn" else work.mail
    tasks = [sent, other.using(queue_name="emails")]
    monkeypatch.setattr(known, "_tasks", {one.module_path: one for one in tasks})
    discovery.register()
    assert registry.subscription("tasks.emails").asynchronous == (name == "turn")

    sent.using(queue_name="emails").enqueue()
    rmq.drain()

    assert "DeadlineExceeded: Handler tasks.emails ran for longer" in rmq.parked("tasks.emails").reason


def customers(message: Delivery) -> str:
    """The customer of a mail: what a project names in OPTIONS."""
    return str(message.data["args"][0])


@pytest.mark.parametrize("keys", [f"{__name__}.customers", customers, lambda message: [customers(message)]])
def test_operators_find_a_task_by_its_path_its_id_and_the_keys_of_the_project(
    keys: object, load: Load, rmq: RmqTest
) -> None:
    work = load(keys={"emails": keys})

    result = work.mail.enqueue("CUST-7")
    other = work.send.enqueue("CUST-8")

    [mail], [sent] = rmq.published("tasks.emails"), rmq.published(HANDLER)
    assert readable_keys(registry.subscription("tasks.emails"), mail) == ["tests.tasks.work.mail", result.id, "CUST-7"]
    assert readable_keys(registry.subscription(HANDLER), sent) == ["tests.tasks.work.send", other.id]
