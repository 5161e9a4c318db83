"""The page "Two services and a reply queue": its files are two projects, which pay, refuse and reply as it says."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue, publish, signals
from django_rmq_retry.testing import RmqTest, isolated_handlers
from tests.shop.running import Running, Shop
from tests.tooling.pages import ROOT, blocks, page
from tests.tooling.waiting import wait_until

TEXTS = [block.text for block in blocks(page("two-services.md")) if block.kind == "python"]
SETTINGS = """
import os

RMQ_RETRY = {}
%s
RMQ_RETRY["URL"] = os.environ["RMQ_URL"]
SECRET_KEY = "only-for-tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry", "%s"]
OPTIONS = {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
NAME = os.environ["SHOP_NOTES"] + ".sqlite3"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": NAME, "OPTIONS": OPTIONS}}
"""
ACCOUNTS = """
from django.db import models

class Account(models.Model):
    number = models.CharField(max_length=20, unique=True)
    balance = models.DecimalField(max_digits=12, decimal_places=2, default=1000)
    limit = models.DecimalField(max_digits=12, decimal_places=2, default=100)
"""
LEDGER = """
from django.db.models import F

from bank.models import Account

class AboveLimit(Exception):
    pass

def transfer(debit, credit, amount, remark):
    if amount > Account.objects.get(number=debit).limit:
        raise AboveLimit(amount)
    Account.objects.filter(number=debit).update(balance=F("balance") - amount)
    Account.objects.filter(number=credit).update(balance=F("balance") + amount)
"""
ORDERS = """
from django.db import models

class Order(models.Model):
    account = models.CharField(max_length=20)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    state = models.CharField(max_length=20, default="new")
    asked_at = models.DateTimeField(null=True)
"""
OPEN = """
from bank.models import Account
Account.objects.create(number="1001001")
Account.objects.create(number="2002002")
"""
ORDER = """
from shop.models import Order
from shop.payments import ask
ask(Order.objects.create(account="1001001", amount="{amount}"))
"""
PAID = {"num": 7, "dbt": "1001001", "krd": "2002002", "amount": 10.23, "remark": "order 7"}


def file(heading: str) -> str:
    """The only file of the page with this comment at its top."""
    [found] = [text for text in TEXTS if text.startswith(f"# {heading}\n")]
    return found


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def bank_handlers() -> str:
    return file("bank/handlers.py") + file("bank/handlers.py, continued")


class Service(Shop):
    """One of the two projects, with its own folder, settings and database."""

    @property
    def folder(self) -> Path:
        return self.notes.parent

    @property
    def app(self) -> str:
        return self.folder.name

    def environment(self, **others: str) -> dict[str, str]:
        found = os.pathsep.join((str(ROOT), str(self.folder)))
        return super().environment(DJANGO_SETTINGS_MODULE=f"{self.app}.settings", PYTHONPATH=found, **others)

    def written(self, **modules: str) -> None:
        (self.folder / self.app).mkdir(parents=True, exist_ok=True)
        for name, text in modules.items():
            (self.folder / self.app / f"{name}.py").write_text(text)

    def migrated(self) -> None:
        self.done("migrate", "--run-syncdb", "--verbosity", "0")

    def done(self, *words: str) -> str:
        told = self.run(*words)
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    def does(self, code: str) -> str:
        return self.done("shell", "--verbosity", "0", "--command", code)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"{self.notes}.sqlite3", timeout=20) as database:
            found = database.execute(query).fetchall()
        database.close()
        return found

    def unsent(self) -> int:
        return int(self.rows("SELECT COUNT(*) FROM rmq_retry_outboxmessage")[0][0])


class Bank(Service):
    def balances(self) -> list[float]:
        return [round(balance, 2) for (balance,) in self.rows("SELECT balance FROM bank_account ORDER BY number")]


class Store(Service):
    def orders(self, amount: str) -> None:
        self.does(ORDER.format(amount=amount))

    def states(self) -> list[str]:
        return [state for (state,) in self.rows("SELECT state FROM shop_order ORDER BY id")]


@contextmanager
def consuming(service: Service) -> Iterator[Running]:
    with service.running("rmq_consume") as consumer:
        yield consumer
        consumer.signal()
        assert consumer.code() == 0, consumer.errors


@pytest.fixture
def bank(broker_url: str, tmp_path: Path) -> Bank:
    made = Bank(url=broker_url, notes=tmp_path / "bank" / "notes")
    handlers = changed(bank_handlers(), "after=30", "after=1")
    settings = SETTINGS % (file("the bank's settings.py"), "bank")
    made.written(__init__="", settings=settings, models=ACCOUNTS, ledger=LEDGER, handlers=handlers)
    made.migrated()
    made.does(OPEN)
    return made


@pytest.fixture
def shop(broker_url: str, tmp_path: Path) -> Store:
    made = Store(url=broker_url, notes=tmp_path / "shop" / "notes")
    files = {name: file(f"shop/{name}.py") for name in ("payments", "handlers", "overdue")}
    made.written(__init__="", settings=SETTINGS % ("", "shop"), models=ORDERS, **files)
    made.migrated()
    return made


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.on_both
def test_a_shop_and_a_bank_pay_once_and_reply(bank: Bank, shop: Store) -> None:
    shop.declared()
    bank.declared()
    with consuming(bank) as consumer, consuming(shop):
        shop.orders("10.23")
        wait_until(lambda: shop.states() == ["paid"], 30)
        shop.does("from shop.models import Order; from shop.payments import ask; ask(Order.objects.get())")
        consumer.says("event=duplicate")
        late = shop.does("from shop.overdue import overdue; print(overdue(0).count(), overdue().count())")

    assert bank.balances() == [989.77, 1010.23]
    # The second request is a duplicate: the bank neither pays nor replies.
    assert (shop.states(), late.split()) == (["asked"], ["1", "0"])


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.on_both
def test_a_shop_learns_of_a_refused_payment_and_of_its_requeue(bank: Bank, shop: Store) -> None:
    shop.declared()
    bank.declared()
    with consuming(bank), consuming(shop):
        shop.orders("210.23")
        wait_until(lambda: shop.states() == ["refused"], 30)
        wait_until(lambda: "order-1" in bank.done("rmq_parked", "list", "--message-id", "order-1"), 30)
        assert bank.balances() == [1000, 1000]
        bank.does("from bank.models import Account; Account.objects.update(limit=500)")
        bank.done("rmq_parked", "requeue", "--message-id", "order-1", "--yes")
        wait_until(lambda: shop.states() == ["paid"], 30)

    assert bank.balances() == [789.77, 1210.23]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.on_both
def test_a_reply_waits_in_the_outbox_until_its_queue_is_declared(bank: Bank, shop: Store) -> None:
    assert "reply-queue\tIt is external (existing=True) and does not exist." in bank.run("rmq_declare").stdout
    with consuming(bank):
        shop.orders("10.23")
        wait_until(lambda: bank.balances() == [989.77, 1010.23], 30)
        wait_until(lambda: bank.unsent() == 1)
        shop.declared()
        wait_until(lambda: not bank.unsent(), 30)
    with consuming(shop):
        wait_until(lambda: shop.states() == ["paid"], 30)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.on_both
def test_a_request_waits_in_the_outbox_until_its_exchange_is_declared(bank: Bank, shop: Store) -> None:
    shop.declared()
    with consuming(shop):
        shop.orders("10.23")
        assert (shop.unsent(), shop.states()) == (1, ["asked"])
        bank.declared()
        with consuming(bank):
            wait_until(lambda: shop.states() == ["paid"], 30)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.on_both
def test_two_refused_payments_without_ids_have_a_refusal_each(bank: Bank, shop: Store, amqp: BlockingChannel) -> None:
    bank.written(handlers=changed(bank_handlers(), "after=30", "after=0.2"))
    shop.declared()
    bank.declared()
    shop.does("from shop.models import Order; [Order.objects.create(account='1001001', amount=1) for _ in range(2)]")
    for number in (1, 2):
        ask_without_an_id(amqp, number)
    with consuming(bank), consuming(shop):
        wait_until(lambda: shop.states() == ["refused", "refused"], 30)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.on_both
def test_a_client_with_plain_pika_gets_its_reply(bank: Bank, broker_url: str, amqp: BlockingChannel) -> None:
    client: dict[str, Any] = {"__name__": "till.client"}
    exec(changed(file("till/client.py"), "inactivity_timeout=600", "inactivity_timeout=4"), client)  # noqa: S102
    both = changed(bank_handlers(), '{"reply-queue"}', '{"reply-queue", "till-replies"}')
    bank.written(settings=SETTINGS % ("", "bank"), handlers=changed(both, "after=30", "after=0.2"))
    bank.declared()
    got: dict[str, object] = {}
    with consuming(bank):
        client["run"](broker_url, [PAID, PAID | {"num": 8, "amount": 210.23}], got.__setitem__)

    assert got == {"till-7": {"status": "ok"}, "till-8": {"status": "refused", "reason": "retries_exhausted"}}
    assert bank.balances() == [989.77, 1010.23]
    assert amqp.queue_declare("till-replies", passive=True).method.message_count == 0


class Ledger:
    """The bank's ledger inside of this process."""

    def __init__(self) -> None:
        self.limit = 100
        self.transfers: list[tuple[Any, ...]] = []

    def transfer(self, *given: Any) -> None:
        if given[2] > self.limit:
            raise ValueError(f"{given[2]} is above the limit")
        self.transfers.append(given)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    for name, known in (("bank", {}), ("bank.ledger", {"transfer": made.transfer})):
        module = ModuleType(name)
        module.__dict__.update(known)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(signals.parked, "receivers", [])
    return made


@contextmanager
def kit(text: str, settings: Any, **more: object) -> Iterator[tuple[RmqTest, dict[str, Any]]]:
    """The test kit with these handlers of the bank and the queue of the shop."""
    settings.RMQ_RETRY = {"URL": "embedded://", "TOPOLOGY": [Queue("reply-queue", type=None)], **more}
    names: dict[str, Any] = {"__name__": "bank.handlers"}
    with isolated_handlers():
        exec(text, names)  # noqa: S102 - our own page
        with RmqTest() as rmq:
            yield rmq, names


def ask(amount: float = 10.23, **options: Any) -> None:
    where = {"exchange": "main-exchange", "routing_key": "srvc.transact.cash", "correlation_id": "order-7"}
    publish(PAID | {"amount": amount}, **{"reply_to": "reply-queue", "message_id": "order-7", **where, **options})


def ask_without_an_id(amqp: BlockingChannel, number: int) -> None:
    """Publish a payment above the limit as a careless service does."""
    properties = BasicProperties(reply_to="reply-queue", correlation_id=f"order-{number}")
    body = json.dumps(PAID | {"num": number, "amount": 210.23}).encode()
    amqp.basic_publish("main-exchange", "srvc.transact.cash", body, properties, mandatory=True)


def replies(rmq: RmqTest) -> list[tuple[str | None, object]]:
    return [(one.correlation_id, json.loads(one.body)) for one in rmq.messages("reply-queue")]


@pytest.mark.django_db
@pytest.mark.parametrize("fault", ["crash before ack", "duplicate delivery", "broker loss"])
def test_whatever_happens_to_the_bank_it_replies_once(ledger: Ledger, settings: Any, fault: str) -> None:
    with kit(bank_handlers(), settings) as (rmq, names):
        rmq.fail_next(names["pay"], fault)
        ask()
        rmq.drain()

        assert replies(rmq) == [("order-7", {"status": "ok"})]
    assert len(ledger.transfers) == 1


@pytest.mark.django_db
def test_a_refused_payment_has_three_returns_and_then_one_refusal(ledger: Ledger, settings: Any) -> None:
    with kit(bank_handlers(), settings) as (rmq, names):
        ask(210.23)
        rmq.drain()

        assert rmq.waits == [30, 30, 30]
        assert rmq.parked(names["pay"]).message.routing_key == "parking-queue"
        assert replies(rmq) == [("order-7", {"status": "refused", "reason": "retries_exhausted"})]
    assert ledger.transfers == []


@pytest.mark.django_db
@pytest.mark.usefixtures("ledger")
def test_without_the_receiver_a_refused_payment_has_no_reply(settings: Any) -> None:
    with kit(file("bank/handlers.py"), settings) as (rmq, _):
        ask(210.23)
        rmq.drain()

        assert replies(rmq) == []


@pytest.mark.django_db
@pytest.mark.parametrize("reply_to", [None, "parking-queue"])
def test_a_payment_that_names_no_allowed_queue_is_paid_without_a_reply(
    ledger: Ledger, settings: Any, reply_to: str | None
) -> None:
    with kit(bank_handlers(), settings) as (rmq, _):
        ask(reply_to=reply_to)
        rmq.drain()

        assert (replies(rmq), rmq.messages("parking-queue")) == ([], [])
    assert len(ledger.transfers) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("allowed", [True, False])
def test_a_returned_reply_is_sent_if_the_setting_allows_its_queue(ledger: Ledger, settings: Any, allowed: bool) -> None:
    returning = changed(file("bank/handlers.py"), '    reply(message, {"status": "ok"})', '    return {"status": "ok"}')
    more: dict[str, object] = {"REPLY_TO": ["reply-queue"]} if allowed else {}
    with kit(returning, settings, **more) as (rmq, _):
        ask()
        ask()
        rmq.drain()

        # The duplicate has no second reply.
        assert replies(rmq) == [("order-7", {"status": "ok"})] * allowed
    assert len(ledger.transfers) == 1
