"""The pages on Celery: both run side by side, and messages of Celery are handed over, with a real Celery."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import CeleryTask
from django_rmq_retry.messages import decode_properties
from django_rmq_retry.models import ParkedMessage
from tests.messages.celery_calls import CALLS
from tests.shop.running import Shop
from tests.tooling.filled import ALIAS, Own
from tests.tooling.pages import ROOT, blocks, page
from tests.tooling.services import Unavailable, go_without
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

BLOCKS = [*blocks(page("celery.md")), *blocks(page("celery-queue.md"))]
TASK = 'name="payments.tasks.charge"'
CHARGING = """
from tests.shop.notes import note

def charge_payment(payment):
    note(f"charge {payment}")
"""
CELERY = """
import os

from celery import Celery
from tests.shop.notes import note

app = Celery("bank", broker=os.environ["RMQ_URL"])
app.set_default()

@app.task(name="payments.tasks.report")
def report():
    pass

@app.task(name="payments.tasks.charge_back")
def charge_back(payment):
    pass

@app.task(name="payments.tasks.receipt")
def receipt(payment):
    note(f"receipt {payment}")

if "WITHOUT_TASK" not in os.environ:
    from payments.tasks import charge
"""


def example(*words: str) -> str:
    """The only example of the pages with all these words."""
    [found] = [block.text for block in BLOCKS if all(word in block.text for word in words)]
    return found


class Bank(Shop):
    """The reader's project, with a Celery application beside the handlers."""

    @property
    def folder(self) -> Path:
        return self.notes.parent / "payments"

    @property
    def log(self) -> Path:
        return self.notes.parent / "celery.log"

    def environment(self, **others: str) -> dict[str, str]:
        own = {"SHOP_APPS": "payments", "PYTHONPATH": f"{ROOT}{os.pathsep}{self.notes.parent}", "C_FORCE_ROOT": "1"}
        return super().environment(**own, **others)

    def written(self, **modules: str) -> None:
        self.folder.mkdir(exist_ok=True)
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)

    def celery_sends(self, code: str) -> None:
        words = [sys.executable, "-c", f"from payments.bank import *\n{code}"]
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def celery(self, shown: str) -> str:
        """Run what the page shows, a script or a command, and return its output."""
        script = shown.replace("celery -A bank", f"{sys.executable} -m celery -A payments.bank")
        done = subprocess.run(
            ["sh", "-c", script], env=self.environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert not done.stderr, done.stderr
        return done.stdout

    @contextmanager
    def worker(self, **others: str) -> Iterator[None]:
        """A Celery worker; it is stopped as an operator would stop it."""
        words = [sys.executable, "-m", "celery", "-A", "payments.bank", "worker", "--pool", "solo", "-l", "INFO"]
        with self.log.open("a") as log:
            process = subprocess.Popen(words, env=self.environment(**others), stdout=log, stderr=log)
            try:
                wait_until(lambda: "ready." in self.log.read_text())
                yield
            finally:
                process.terminate()
                process.wait(30)


@pytest.fixture
def bank(broker_url: str, tmp_path: Path, own_database: Own) -> Bank:
    if find_spec("celery") is None:
        go_without(Unavailable(None, "celery is not installed. Run `pip install --group clients`."))
    bank = Bank(url=broker_url, notes=tmp_path / "notes", records=own_database.environment)
    errors = "class BankDown(Exception):\n    pass\n"
    tasks = example(TASK, "def charge(payment)")
    bank.written(__init__="", charging=CHARGING, errors=errors, tasks=tasks, bank=CELERY, handlers=moved())
    return bank


def moved() -> str:
    return example('"payments.charge",', "retry_on=BankDown")


def ready(amqp: BlockingChannel) -> int:
    return int(amqp.queue_declare("celery", passive=True).method.message_count)


def test_worker_and_consumer_run_side_by_side(bank: Bank) -> None:
    bank.declared()
    with bank.worker(), bank.running("rmq_consume", "payments.charge") as consumer:
        bank.celery_sends("charge.delay(1)")
        message = bank.folder / "payment.json"
        message.write_text('{"payment": 2}')
        bank.run("rmq_publish", "--handler", "payments.handlers.charge", str(message))
        wait_until(lambda: len(bank.noted()) == 2)
        consumer.signal()
        assert consumer.code() == 0

    assert sorted(bank.noted()) == ["charge 1", "charge 2"]


def test_two_looks_find_the_last_call_of_a_task_in_a_shared_queue(bank: Bank) -> None:
    look, nothing = example("celery -A bank inspect"), example("celery.accumulate --queue").removeprefix("$ ")
    counted = '"payments.tasks.charge": '
    with bank.worker():
        bank.celery_sends("report.delay(); charge_back.delay(7); charge.delay(7); report.delay()")
        wait_until(bank.noted)
        first = bank.celery(look)
        sent = bank.celery(nothing).strip()
        wait_until(lambda: f"Task celery.accumulate[{sent}] succeeded" in bank.log.read_text())
        second = bank.celery(look)
        bank.celery_sends("report.delay(); charge.apply_async((8,), countdown=3600)")
        wait_until(lambda: bank.log.read_text().count("Task payments.tasks.charge[") == 3)
        third = bank.celery(look)

    for seen in (first, second, third):
        assert (seen.count(f"{counted}1"), seen.count("1 node online")) == (2, 5), seen
    assert "charge_back" not in first
    assert ["celery.accumulate" in seen for seen in (first, second, third)] == [False, True, True]
    assert ["'args'" in seen for seen in (first, second, third)] == [False, False, True]


def test_a_celery_bridge_passes_each_call_by_name_to_the_handler(bank: Bank) -> None:
    bank.written(tasks=example(TASK, "self.request.id"))
    # Outside of manage.py the worker of a Django project starts Django itself.
    bank.written(bank=f"import django\n\ndjango.setup()\n{CELERY}")
    bank.declared()
    with bank.worker(), bank.running("rmq_consume", "payments.charge") as consumer:
        bank.celery_sends("app.send_task('payments.tasks.charge', (3,), task_id='task-3')")
        wait_until(bank.noted)
        consumer.says("message_id=task-3")
        consumer.signal()
        assert consumer.code() == 0

    assert bank.noted() == ["charge 3"]


def test_a_bridge_in_a_chain_starts_the_next_task_too_early(bank: Bank) -> None:
    bank.written(tasks=example(TASK, "self.request.id"))
    bank.written(bank=f"import django\n\ndjango.setup()\n{CELERY}")
    bank.declared()
    with bank.worker():
        bank.celery_sends("(charge.si(5) | receipt.s()).delay()")
        wait_until(bank.noted)

    assert bank.noted() == ["receipt None"]


def test_a_handler_calls_the_task_that_stays_in_celery(bank: Bank) -> None:
    bank.written(handlers=example('task="payments.tasks.receipt"'))
    bank.declared()
    message = bank.folder / "payment.json"
    message.write_text('{"payment": 5}')
    with bank.worker(), bank.running("rmq_consume", "payments.charge") as consumer:
        bank.run("rmq_publish", "--handler", "payments.handlers.charge", str(message))
        wait_until(lambda: len(bank.noted()) == 2)
        consumer.signal()
        assert consumer.code() == 0

    assert bank.noted() == ["charge 5", "receipt 5"]


def test_on_the_way_back_celery_gets_what_is_parked(bank: Bank) -> None:
    bank.written(charging="def charge_payment(payment):\n    raise ValueError(payment)\n")
    bank.declared()
    message = bank.folder / "payment.json"
    message.write_text('{"payment": 6}')
    with bank.running("rmq_consume", "payments.charge") as consumer:
        bank.run("rmq_publish", "--handler", "payments.handlers.charge", str(message))
        wait_until(lambda: ParkedMessage.objects.using(ALIAS).exists())
        consumer.signal()
        assert consumer.code() == 0

    bank.written(charging=CHARGING, handlers=example('CeleryCall(task="payments.tasks.charge"'))
    lines = page("celery.md").read_text().splitlines()
    command = next(line for line in lines if "manage.py rmq_parked requeue" in line)
    with bank.worker(), bank.running("rmq_consume", "payments.charge") as consumer:
        done = bank.run(*shlex.split(command.partition("manage.py ")[2]), "--yes")
        wait_until(bank.noted)
        consumer.signal()
        assert consumer.code() == 0

    assert done.returncode == 0, done.stdout + done.stderr
    assert bank.noted() == ["charge 6"]
    assert ParkedMessage.objects.using(ALIAS).get().state == "processed"


def test_a_celery_worker_without_the_task_discards_its_message(bank: Bank, amqp: BlockingChannel) -> None:
    bank.celery_sends("charge.delay(1)")
    with bank.worker(WITHOUT_TASK="1"):
        wait_until(lambda: "Received unregistered task" in bank.log.read_text())

    assert ready(amqp) == 0
    assert bank.noted() == []


@pytest.mark.parametrize("protocol", [1, 2])
def test_the_installed_celery_sends_what_was_recorded(bank: Bank, amqp: BlockingChannel, protocol: int) -> None:
    sent = """
import datetime as d
import decimal
import uuid

app.conf.task_protocol = PROTOCOL
name = "payments.tasks.charge"
moment = d.datetime(2030, 1, 2, 3, 4, 5, tzinfo=d.UTC)
types = decimal.Decimal("9.90"), moment, d.date(2030, 1, 2), d.time(3, 4), uuid.UUID(int=7), b"abc", b"\\xff\\xfe", 0.5
link = app.signature("payments.tasks.report")
app.send_task(name, (7,), {"amount": "9.90"}, task_id="task-1")
app.send_task(name, (7,), task_id="task-2", eta=moment)
app.send_task(name, types, task_id="task-4")
app.send_task(name, (7,), task_id="task-5", link=link, retries=2)
"""
    bank.celery_sends(sent.replace("PROTOCOL", str(protocol)))
    for name, call in CALLS.items():
        _method, known, body = amqp.basic_get("celery", auto_ack=True)
        assert known is not None
        properties = decode_properties(b"".join(known.encode()))
        assert CeleryTask().decode(body or b"", properties) == call, name


def test_celery_messages_are_moved_with_their_ids_and_countdowns(
    bank: Bank, amqp: BlockingChannel, vhost: Vhost
) -> None:
    with bank.worker():
        bank.celery_sends("charge.apply_async((1,), countdown=3600, task_id='task-1')")
        wait_until(lambda: "Task payments.tasks.charge[task-1] received" in bank.log.read_text())
        assert ready(amqp) == 0
    bank.celery_sends("charge.apply_async((2,), task_id='task-2'); charge.delay(payment=3); report.delay()")
    bank.celery_sends("charge.apply_async((4,), countdown=3600, expires=1800)")
    assert ready(amqp) == 5

    bank.written(handlers=f"{moved()}\n{example('def charge_of_celery')}")
    bank.declared()
    with bank.running("rmq_consume", "payments.charge", "celery") as consumer:
        consumer.says("event=ack queue=celery", times=3)
        consumer.says("event=discard queue=celery")
        consumer.says("message_id=task-2")
        wait_until(lambda: len(bank.noted()) == 2)
        wait_until(lambda: ParkedMessage.objects.using(ALIAS).exists())
        consumer.signal()
        assert consumer.code() == 0

    assert sorted(bank.noted()) == ["charge 2", "charge 3"]
    [other] = ParkedMessage.objects.using(ALIAS).all()
    assert (other.reason, other.parked_in) == ("no_handler", "celery.parked")
    # The one with a countdown waits: in a waiting queue or, between two of its waits, in the work queue.
    queues = [name for name in vhost.queues() if name.startswith("payments.charge")]
    found: list[str] = []

    def waits() -> bool:
        found.extend(got[1].message_id or "" for got in map(amqp.basic_get, queues) if got[1])
        return bool(found)

    wait_until(waits)
    assert found == ["task-1"]


def test_a_call_whose_callback_would_be_lost_is_parked_instead(bank: Bank) -> None:
    bank.celery_sends("charge.apply_async((1,), link=report.si()); charge.delay(2)")

    bank.written(handlers=f"{moved()}\n{example('def charge_of_celery')}")
    bank.declared()
    with bank.running("rmq_consume", "payments.charge", "celery") as consumer:
        consumer.says("event=ack queue=payments.charge")
        wait_until(lambda: ParkedMessage.objects.using(ALIAS).exists())
        consumer.signal()
        assert consumer.code() == 0

    assert bank.noted() == ["charge 2"]
    [parked] = ParkedMessage.objects.using(ALIAS).all()
    assert parked.parked_in == "celery.parked"


def test_going_back_for_good_celery_gets_all_that_is_parked_even_pickle(bank: Bank) -> None:
    bank.written(bank=f"{CELERY}\napp.conf.accept_content = ['json', 'pickle']\n")
    bank.celery_sends("charge.apply_async((1,), serializer='pickle'); charge.apply_async((2,), link=report.si())")
    bank.celery_sends("receipt.delay(3)")
    bank.written(handlers=f"{moved()}\n{example('def charge_of_celery')}")
    bank.declared()
    parked = ParkedMessage.objects.using(ALIAS)
    with bank.running("rmq_consume", "celery") as consumer:
        wait_until(lambda: parked.count() == 3)
        consumer.signal()
        assert consumer.code() == 0
    assert {one.reason for one in parked.all()} == {"undecodable_body", "parked_by_handler", "no_handler"}

    command = example("manage.py rmq_parked requeue --queue celery --include permanent")
    with bank.worker():
        done = bank.run(*shlex.split(command.partition("manage.py ")[2]), "--yes")
        wait_until(lambda: len(bank.noted()) == 3)

    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(bank.noted()) == ["charge 1", "charge 2", "receipt 3"]
