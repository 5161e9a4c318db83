"""One handler for each kind of symptom. While BANK_FOLDER has a file "down", the other bank fails."""

import os
import signal
from pathlib import Path
from typing import Any

from django.db import transaction

from django_rmq_retry import (
    Breaker,
    Delivery,
    Exchange,
    Fixed,
    Handler,
    Queue,
    RetryThenPark,
    StopTheLine,
    handler,
    publish,
)
from django_rmq_retry.models import OutboxMessage

FOLDER = Path(os.environ["BANK_FOLDER"])
POLICY = RetryThenPark(attempts=2, backoff=Fixed(1))


class GatewayTimeout(Exception):
    """The other bank does not answer."""


class BankDown(Exception):
    """The other bank refuses connections."""


class NotCovered(Exception):
    """The account has too little."""


def charge(message: Delivery) -> None:
    data: Any = message.data
    if data.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if (FOLDER / "down").exists():
        raise GatewayTimeout("no answer from the other bank")


def refund(_message: Delivery) -> None:
    if (FOLDER / "down").exists():
        raise BankDown("connection refused")


def post(_message: Delivery) -> None:
    if (FOLDER / "down").exists():
        raise NotCovered("ACC-7 does not cover 120.00")


def transfer(message: Delivery) -> None:
    data: Any = message.data
    if data["account"] == "ACC-7":
        charge(message)


def keys(message: Delivery) -> list[str]:
    data: Any = message.data
    return [f"PAY-{data['payment']}"]


def account(message: Delivery) -> str:
    data: Any = message.data
    return str(data["account"])


KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "charge": ("payments.charge", charge, {"policy": POLICY}),
    "collect": ("payments.collect", charge, {"policy": POLICY}),
    "refund": ("payments.refund", refund, {"policy": POLICY, "breaker": Breaker(on=BankDown, probe_after=30)}),
    "post": ("ledger.post", post, {"policy": StopTheLine(backoff=Fixed(1))}),
    "transfer": ("accounts.transfer", transfer, {"policy": POLICY, "order_by": account}),
    "announce": (Queue("audit.paid", bindings=[Exchange("audit").bind("paid")]), charge, {"policy": POLICY}),
}
CHOSEN: dict[str, Handler[Any]] = {
    name: handler(place, name=f"bank.{name}", keys=keys, **more)(function)
    for name, (place, function, more) in KINDS.items()
    if name in os.environ["BANK_HANDLERS"].split()
}


def send(name: str, *payments: int, **data: object) -> None:
    """Publish one message for each payment when a transaction commits."""
    with transaction.atomic():
        for payment in payments:
            CHOSEN[name].publish({"payment": payment, **data}, message_id=f"MSG-{payment}")


def send_to(exchange: str, routing_key: str, *payments: int) -> None:
    """Publish to an exchange, like `send`."""
    with transaction.atomic():
        for payment in payments:
            publish({"payment": payment}, exchange=exchange, routing_key=routing_key, message_id=f"MSG-{payment}")


def refused_often() -> None:
    """Let the next refusal be the last of fifteen."""
    OutboxMessage.objects.update(attempts=14)
