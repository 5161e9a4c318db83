"""A project with one work queue and no broker: what is published is kept in a list."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_rmq_retry import Delivery, Message, handler
from django_rmq_retry.amqp import CONFIRMED, Done
from django_rmq_retry.testing import isolated_handlers
from tests.admin import made
from tests.tooling.brokers import really_connected, replaced_by

QUEUE = "payments.main"
SUPPORT = ("view_parkedmessage", "view_errorgroup", "view_operatoraction")


class Kept:
    """A broker that confirms everything."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        self.messages.append(message)

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        self.messages.append(message)
        done(CONFIRMED)

    def publish_many(self, messages: Iterable[Message], *, window: int = 0, timeout: float | None = None) -> int:
        raise NotImplementedError

    def call(self, message: Message, *, timeout: float) -> Delivery:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def sent() -> Iterator[list[Message]]:
    """The published messages."""
    kept = Kept()
    with isolated_handlers(), replaced_by(kept):

        @handler(QUEUE)
        def transfer(message: Delivery) -> None:
            """Nothing."""

        yield kept.messages


@pytest.fixture
def connected(sent: list[Message]) -> Iterator[None]:  # noqa: ARG001 - what it replaces
    """The process uses the broker of the settings after all."""
    with really_connected():
        yield


@pytest.fixture
def lead(db: None) -> User:  # noqa: ARG001 - asked for by its name
    """A superuser."""
    return made.person("lead", superuser=True)


@pytest.fixture
def page(lead: User) -> Client:
    """The lead's browser, without JavaScript."""
    client = Client(enforce_csrf_checks=False)
    client.force_login(lead)
    return client


def client_of(user: User) -> Client:
    """The browser of a user."""
    client = Client()
    client.force_login(user)
    return client


def operating(settings: Any, **operators: Any) -> None:
    """Set the project's OPERATORS."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": operators}


def linking(settings: Any, **links: str) -> None:
    """Set the project's LINKS."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "LINKS": links}


def is_north(_user: object, _verb: str, message: Any) -> bool:
    """A rule of the project: only messages of the type "north" are for anybody."""
    return bool(message.type == "north")


def support(*more: str) -> Client:
    """The browser of somebody who may look, and do this."""
    return client_of(made.person("support", *SUPPORT, *more))
