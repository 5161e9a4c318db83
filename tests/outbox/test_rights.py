"""A revoked write permission: only the messages that need it wait in the outbox, without a time limit."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing import faults, outgoing
from tests.outbox.dying import QUEUE
from tests.outbox.made import kept, left, relay
from tests.tooling.brokers import using_broker
from tests.tooling.filled import Own
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.slow]

ROWS = OutboxMessage.objects.using("own")
Grant = Callable[[str], None]


@pytest.fixture
def grant(vhost: Vhost, amqp: BlockingChannel, own_database: Own, settings: Any) -> Iterator[Grant]:  # noqa: ARG001
    """Publish as a user of this test, with the given write permission."""
    name, management = vhost.name, vhost.management
    management.call("PUT", f"users/{name}", {"password": "p", "tags": ""})

    def grant(write: str) -> None:
        management.call("PUT", f"permissions/{name}/{name}", {"configure": "^$", "write": write, "read": "^$"})

    amqp.queue_declare(QUEUE)
    for exchange in ("shut", "open"):
        amqp.exchange_declare(exchange, "fanout")
        amqp.queue_bind(QUEUE, exchange)
    with using_broker(settings, vhost.url.replace("guest:guest@", f"{name}:p@")):
        yield grant
    management.call("DELETE", f"users/{name}")


def turned(one: Any, done: Callable[[], bool]) -> bool:
    one.turn()
    return done()


def test_rows_wait_for_a_missing_permission_and_others_are_sent(
    grant: Grant, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (outgoing, "WRITE_TRIES", 2),
        (faults, "LONGEST_RESEND_SECONDS", 0.1),
        (faults, "PROBE_MARGIN_SECONDS", 0.1),
    ):
        monkeypatch.setattr(module, name, value)
    grant("^open$")
    left("s1", "s2", "s3", exchange="shut")
    left("o1", exchange="open")
    one = relay()
    wait_until(lambda: turned(one, lambda: kept("own") == ["s1", "s2", "s3"]), what="what may be sent is sent")
    # Each refusal closes the channel, so one row probes for all.
    asked: list[int] = []
    failed = faults.failed

    def noted(row: Any, *, using: str, why: str, whose: faults.RowFault) -> float:
        asked.append(row.id)
        return failed(row, using=using, why=why, whose=whose)

    monkeypatch.setattr(faults, "failed", noted)
    wait_until(lambda: turned(one, lambda: len(asked) > 4), what="one asks again and again")
    assert set(asked) == {ROWS.get(routing_key="s1").pk}
    assert "refused for user" in ROWS.get(routing_key="s1").error
    assert set(ROWS.exclude(routing_key="s1").values_list("attempts", "failed_at")) == {(0, None)}

    left("o2", exchange="open")
    wait_until(lambda: turned(one, lambda: "o2" not in kept("own")), what="what may be sent is sent meanwhile")
    grant(".*")
    wait_until(lambda: turned(one, lambda: not kept("own")), what="all is sent")

    arrived = [amqp.basic_get(QUEUE, auto_ack=True)[1] for _ in range(5)]
    assert [one.message_id for one in arrived if one] == ["id of o1", "id of o2", "id of s1", "id of s2", "id of s3"]
