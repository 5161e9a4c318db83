"""The handlers of a project together: found, joined by queue, and each name once."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.test import override_settings

from django_rmq_retry import Delivery, Exchange, Queue, handler
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import registry
from django_rmq_retry.topology import Role

HANDLERS = """
from django_rmq_retry import handler

@handler("shop.order")
def order(message):
    return 1
"""


pytestmark = pytest.mark.usefixtures("no_handlers")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An app of a project, with handlers."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "handlers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder / "handlers.py"
    for name in ("shop.handlers", "shop"):
        sys.modules.pop(name, None)


def names() -> list[str]:
    return [found.name for found in registry.subscriptions()]


@pytest.mark.usefixtures("shop")
def test_handlers_are_found_in_each_installed_app() -> None:
    with override_settings(INSTALLED_APPS=["django_rmq_retry", "shop"]):
        apps.get_app_config("rmq_retry").ready()

    assert names() == ["shop.handlers.order"]


def test_an_import_error_in_a_handlers_module_is_raised(shop: Path) -> None:
    shop.write_text("import a_module_that_is_missing\n")

    with (
        pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"),
        override_settings(INSTALLED_APPS=["shop"]),
    ):
        registry.autodiscover()


def test_a_reloaded_module_replaces_its_handlers(shop: Path) -> None:
    module = importlib.import_module("shop.handlers")
    shop.write_text(HANDLERS.replace("order", "parcel") + HANDLERS.replace("order", "bill").replace("1", "22"))
    importlib.reload(module)

    assert names() == ["shop.handlers.parcel", "shop.handlers.bill"]


@pytest.mark.usefixtures("shop")
def test_a_reloaded_module_may_define_the_same_handlers() -> None:
    module = importlib.import_module("shop.handlers")
    importlib.reload(module)

    assert names() == ["shop.handlers.order"]


def test_one_name_for_two_functions_is_refused(shop: Path) -> None:
    shop.write_text(HANDLERS + HANDLERS.replace("shop.order", "shop.other"))

    with pytest.raises(ConfigurationError) as caught:
        importlib.import_module("shop.handlers")

    assert str(caught.value) == (
        "Two handlers have the name 'shop.handlers.order', for the queues 'shop.order' and 'shop.other'. "
        "Rename one function, or give one of them name='…'."
    )


def test_a_queue_named_by_one_handler_and_defined_by_another_is_one_queue() -> None:
    written = Queue("payments", type="classic", max_priority=5)

    @handler("payments", name="cash", type="cash")
    def cash(message: Delivery) -> None: ...

    @handler(written, name="card", type="card")
    def card(message: Delivery) -> None: ...

    (work_queue,) = registry.work_queues()

    assert cash.queue == card.queue == written
    assert [found.name for found in work_queue.subscriptions] == ["cash", "card"]


def test_a_later_handler_may_define_the_queue() -> None:
    @handler("payments", name="cash", type="cash")
    def cash(message: Delivery) -> None: ...

    before = cash.queue.type

    @handler(Queue("payments", type="classic"), name="card", type="card")
    def card(message: Delivery) -> None: ...

    assert (before, cash.queue.type) == ("quorum", "classic")


def test_the_settings_may_define_a_work_queue() -> None:
    events = Exchange("events", "topic")
    written = Queue("payments", bindings=[events.bind("payment.#")])

    @handler("payments", name="cash")
    def cash(message: Delivery) -> None: ...

    with override_settings(RMQ_RETRY={"TOPOLOGY": [written, Queue("archive")]}):
        found = registry.topology()

    assert found.role("payments") is Role.WORK
    assert found.queues["payments"].arguments["x-dead-letter-routing-key"] == "payments.parked"
    assert found.role("archive") is Role.OTHER
    assert [binding.key for binding in found.bindings] == ["payment.#"]


def test_an_invalid_handler_does_not_remove_others_from_the_queue() -> None:
    @handler("payments", name="cash")
    def cash(message: Delivery) -> None: ...

    @handler("payments", name="card")
    def card(message: Delivery) -> None: ...

    assert cash.subscription.queue == Queue("payments")


def test_the_subscription_of_a_handler_is_computed_once() -> None:
    @handler("payments", name="cash")
    def cash(message: Delivery) -> None: ...

    assert cash.subscription is cash.subscription


@override_settings(RMQ_RETRY={"TOPOLOGY": [Queue("parking-queue", type=None, arguments={"x-queue-mode": "lazy"})]})
def test_a_parked_queue_is_declared_as_defined_in_the_settings() -> None:
    @handler("main-queue", park="parking-queue")
    def cash(message: Delivery) -> None: ...

    parked = registry.topology().queues["parking-queue"]

    assert (parked.role, parked.arguments) == (Role.PARKED, {"x-queue-mode": "lazy"})
