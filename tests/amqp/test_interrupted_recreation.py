"""The recreation of a queue is interrupted at every step: nothing is lost, and the next run completes it."""

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp.move import Copier
from django_rmq_retry.amqp.recreation import Recreation
from django_rmq_retry.amqp.session import Question, Session
from tests.amqp.declared import declare, session_on
from tests.amqp.recreated import OLD, bodies, fill, recreate
from tests.tooling.vhosts import Vhost

pytestmark = pytest.mark.contract
NIGHTLY = pytest.mark.nightly


class Killed(Exception):
    """Stands for kill -9."""


# Each night at every step.
@pytest.mark.parametrize(
    "step", [step if step % 4 == 1 else pytest.param(step, marks=NIGHTLY) for step in range(1, 40)]
)
def test_recreation_killed_at_any_step_and_repeated_loses_nothing(
    step: int, vhost: Vhost, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(vhost, OLD)
    fill(amqp)
    asked = 0

    def ask(self: Session, question: Question, ask: Callable[..., Any] = Session.ask) -> Any:
        nonlocal asked
        asked += 1
        if asked == step:
            raise Killed
        return ask(self, question)

    with monkeypatch.context() as patch, session_on(vhost.url) as session:
        patch.setattr(Session, "ask", ask)
        try:
            recreate(session)
        except Killed:
            amqp.basic_publish("shop", "k", b"meanwhile")
    with session_on(vhost.url) as session:
        recreate(session)

    assert set(vhost.queues()) <= {"orders", "orders.trial"}
    assert set(bodies(amqp)) >= {b"0", b"1", b"2"} | ({b"meanwhile"} if asked == step else set())


@pytest.mark.parametrize("copies", [150, 450, *(pytest.param(copies, marks=NIGHTLY) for copies in (1, 301, 599))])
def test_recreation_killed_during_a_move_and_repeated_loses_nothing(
    copies: int, vhost: Vhost, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(vhost, OLD)
    fill(amqp, 300)
    copied = 0

    def copy(self: Copier, *got: Any, copy: Callable[..., None] = Copier.copy, **to: Any) -> None:
        nonlocal copied
        copied += 1
        if copied == copies:
            raise Killed
        copy(self, *got, **to)

    with monkeypatch.context() as patch, session_on(vhost.url) as session:
        patch.setattr(Copier, "copy", copy)
        with pytest.raises(Killed):
            recreate(session)
    with session_on(vhost.url) as session:
        recreate(session)

    assert set(vhost.queues()) == {"orders"}
    assert set(bodies(amqp)) == {b"%d" % number for number in range(300)}


def test_messages_published_while_the_queue_is_deleted_are_kept(
    vhost: Vhost, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(vhost, OLD)
    fill(amqp)

    def fill_in(self: Recreation, fill_in: Callable[..., int] = Recreation._fill) -> int:
        amqp.basic_publish("shop", "k", b"in between")
        return fill_in(self)

    monkeypatch.setattr(Recreation, "_fill", fill_in)
    with session_on(vhost.url) as session:
        recreate(session)

    assert set(bodies(amqp)) == {b"0", b"1", b"2", b"in between"}
