"""The ledger on a private broker and database, with consumers as processes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from tests.ordering.bank import blocked, waiting
from tests.shop.running import Running, Shop
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

QUEUE = "ledger.post"


@dataclass(slots=True)
class Ledger:
    """The ledger; the notes have the postings of all processes in their order."""

    shop: Shop
    amqp: BlockingChannel
    vhost: Vhost

    def publish(self, account: str, *numbers: int, named: bool = True, **what: Any) -> None:
        for number in numbers:
            name = f"{account}{number}" if named else None
            said = BasicProperties(delivery_mode=2, message_id=name, content_type="application/json")
            body = json.dumps({"account": account, "number": number, **what}).encode()
            self.amqp.basic_publish("", QUEUE, body, said, mandatory=True)

    @contextmanager
    def consumer(self, *options: str, **changed: str) -> Iterator[Running]:
        """Start a consumer; of several, the first one is the active consumer."""
        with self.shop.running("rmq_consume", "--max-runtime", "120", *options, **changed) as running:
            yield running

    def _consumers(self) -> int:
        # The broker counts only the active consumer.
        rows = self.vhost.management.call("GET", f"consumers/{quote(self.vhost.name, safe='')}")
        return sum(row["queue"]["name"] == QUEUE for row in rows)

    def counts(self) -> tuple[int, int]:
        """Return the ready and the unacked messages of the queue, as the broker last counted them."""
        row = self.vhost.queues()[QUEUE]
        return row.get("messages_ready", -1), row.get("messages_unacknowledged", -1)

    def subscribed(self, count: int) -> None:
        wait_until(lambda: self._consumers() == count, what=f"{count} consumers are subscribed")

    def ended(self, account: str) -> list[int]:
        """Return the first postings of an account, in their order."""
        return list(dict.fromkeys(number for word, number in self.seen(account) if word == "end"))

    def seen(self, account: str) -> list[tuple[str, int]]:
        found = (line.split() for line in self.shop.noted())
        return [(word, int(number)) for word, key, number in found if key == account]

    def overtaken(self, account: str, *, resolved: tuple[int, ...] = ()) -> list[tuple[int, set[int]]]:
        """Return the postings that started before an earlier one was resolved, with the earlier ones."""
        done, found = set(resolved), []
        for word, number in self.seen(account):
            early = set(range(1, number)) - done
            if word == "begin" and early:
                found.append((number, early))
            if word == "end":
                done.add(number)
        return found

    def posts(self, account: str, *numbers: int, timeout: float = 60) -> None:
        """Wait until these were posted."""
        wait_until(
            lambda: set(numbers) <= set(self.ended(account)),
            timeout,
            what=f"{account} is posted; {self.seen(account)}",
        )

    def free(self) -> None:
        """Wait until no key is blocked."""
        wait_until(lambda: not blocked("own") and not waiting("own"), what=f"no key is blocked: {blocked('own')}")
