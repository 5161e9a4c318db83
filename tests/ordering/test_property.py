"""Invariant B with failed, requeued and discarded messages, for many generated days of a bank."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_rmq_retry import Message
from django_rmq_retry.models import BlockedKey, BlockedMessage, OutboxMessage
from django_rmq_retry.ordering.keys import unblock
from django_rmq_retry.testing import RmqTest, isolated_handlers
from tests.ordering.bank import QUEUE, Bank, blocked
from tests.tooling.brokers import publish_exactly

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

MESSAGES = st.lists(
    st.tuples(st.sampled_from("ABC"), st.sampled_from(["fine", "fine", "fails once", "fails twice", "closed"])),
    min_size=1,
    max_size=12,
)
FAULTS = st.lists(st.sampled_from(["", "", "crash before ack", "duplicate delivery", "broker loss"]), max_size=6)
ACTS = st.lists(st.sampled_from(["requeue", "discard"]), min_size=40, max_size=40)
PAUSES = st.lists(st.sampled_from([0, 3, 12]), max_size=12)


class Day:
    """One day of the bank: the order on each account, resolved messages, and violations."""

    def __init__(self, rmq: RmqTest, bank: "ToldBank") -> None:
        self.rmq, self.bank = rmq, bank
        self.accounts: dict[int, str] = {}
        self.resolved: set[int] = set()

    def publish(self, number: int, account: str, fate: str) -> None:
        self.accounts[number] = account
        self.bank.down[number] = {"fails once": 1, "fails twice": 2}.get(fate, 0)
        if fate == "closed":
            self.bank.closed.add(number)
        self.bank.publish(number, account=account)

    def resolve(self, row: BlockedKey, act: str) -> None:
        """An action of an operator on a parked message."""
        number = int(row.blocker.removeprefix("m"))
        self.bank.closed.discard(number)
        if act == "discard":
            self.resolved.add(number)
            self.bank.gone.append(number)
            unblock(row)
            return
        (copy,) = [one for one in self.rmq.all_parked(self.bank.post) if one.message.id == row.blocker][-1:]
        publish_exactly(Message(body=copy.body, properties=copy.message.properties, routing_key=QUEUE))

    def overtaken(self) -> list[tuple[int, int]]:
        """Return messages that started before an earlier one of their account was handled or discarded."""
        done: set[int] = set()
        found = []
        for word, number in self.bank.story:
            if word == "begin":
                mine = [one for one, key in self.accounts.items() if key == self.accounts[number] and one < number]
                found += [(number, one) for one in mine if one not in done]
            else:
                done.add(number)
        return found


class ToldBank(Bank):
    """A bank that also records the order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.story: list[tuple[str, int]] = []
        self.gone = Gone(self.story)

    def _post(self, message: Any) -> None:
        number = message.data["number"]
        self.story.append(("begin", number))
        super()._post(message)
        self.story.append(("end", number))


class Gone:
    def __init__(self, story: list[tuple[str, int]]) -> None:
        self._story = story

    def append(self, number: int) -> None:
        self._story.append(("end", number))


@contextmanager
def a_day() -> Iterator[Day]:
    with transaction.atomic():
        for model in (BlockedMessage, BlockedKey, OutboxMessage):
            model.objects.all().delete()
    with isolated_handlers(), RmqTest() as rmq:
        yield Day(rmq, ToldBank())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, faults=FAULTS, acts=ACTS, pauses=PAUSES)
def test_per_key_no_later_message_begins_before_the_earlier_is_handled_or_discarded(
    messages: list[tuple[str, str]], faults: list[str], acts: list[str], pauses: list[int]
) -> None:
    with a_day() as day:
        for number, (account, fate) in enumerate(messages, start=1):
            day.publish(number, account, fate)
            if number <= len(pauses):
                day.rmq.advance(pauses[number - 1])
        for fault in filter(None, faults):
            day.rmq.fail_next(day.bank.post, fault)
        day.rmq.drain()
        for act in acts:
            row = BlockedKey.objects.filter(parked=True).order_by("pk").first()
            if row is None:
                break
            day.resolve(row, act)
            day.rmq.drain()

        handled = set(day.bank.posted) | day.resolved
        assert day.overtaken() == []
        assert (handled, blocked()) == (set(day.accounts), {})
