"""Lines for people, made of the consumer's log, and a count of its events."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from django_rmq_retry.management.terminal import flat
from testproject.payments.models import Payment

BOOKING = ("post", "cash")
"""The handlers that post a payment to the ledger."""


class Tally:
    """The events so far. A message is waiting from its first retry until it is paid or parked."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}
        """The number of attempts of each paid message, by its id."""
        self.waiting: dict[str, int] = {}
        """The number of failed attempts of each waiting message."""
        self.parked: dict[str, str] = {}
        """The reason of each parked message."""
        self.retries = 0

    def line_of(self, line: str) -> tuple[str, str] | None:
        """Return the line for a log line of the consumer, and its style; None if it shows nothing."""
        event = _event(line)
        tellers: dict[str, Callable[[Mapping[str, Any]], tuple[str, str] | None]] = {
            "ack": self._ack,
            "retry": self._retry,
            "park": self._park,
            "halt": lambda one: (f"halted  {_what(one)}: {one.get('detail')}", "ERROR"),
        }
        tell = tellers.get(event.get("event", ""), _remark)
        shown = tell(event)
        return shown and (flat(shown[0]), shown[1])

    def total(self) -> str:
        """Summarize the events."""
        return (
            f"{len(self.paid)} paid, {self.retries} {'retry' if self.retries == 1 else 'retries'}, "
            f"{len(self.waiting)} waiting for {'its' if len(self.waiting) == 1 else 'their'} next attempt, "
            f"{len(self.parked)} parked"
        )

    def _ack(self, event: Mapping[str, Any]) -> tuple[str, str] | None:
        message = _message(event)
        if _handler(event) not in BOOKING:
            # A posting may be booked before the log shows the attempt that published it.
            if message in self.paid:
                self.waiting.pop(message, None)
            return None
        attempts = self.waiting.pop(message, 0) + 1
        self.paid[message] = attempts
        self.parked.pop(message, None)
        after = f", at attempt {attempts}" if attempts > 1 else ""
        return f"paid    {_what(event)}{after}", "SUCCESS"

    def _retry(self, event: Mapping[str, Any]) -> tuple[str, str]:
        self.retries += 1
        self.waiting[_message(event)] = event["attempt"]
        of = f" of {event['attempts']}" if event.get("attempts") else ""
        after = f"{event.get('after') or 0:.1f}"
        return (
            f"retry   {_what(event)}: {event.get('error')}, attempt {event['attempt']}{of}, again in {after} s",
            "WARNING",
        )

    def _park(self, event: Mapping[str, Any]) -> tuple[str, str]:
        text = str(event.get("detail") or event.get("reason"))
        self.waiting.pop(_message(event), None)
        self.parked[_message(event)] = text
        return f"parked  {_what(event)}: {text}", "ERROR"


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"level": "warning", "msg": line}


def _remark(event: Mapping[str, Any]) -> tuple[str, str] | None:
    if event.get("level") in ("debug", "info"):
        return None
    return f"note    {event.get('msg') or event.get('detail') or event.get('event')}", "WARNING"


def _handler(event: Mapping[str, Any]) -> str:
    return str(event.get("handler", "")).rpartition(".")[2]


def _message(event: Mapping[str, Any]) -> str:
    """Return the id of the payment's message; a posting has the number of the card payment that it ends."""
    name, _, number = str(event.get("message_id", "")).partition("-")
    return f"card-{number}" if name == "post" else f"{name}-{number}"


def _what(event: Mapping[str, Any]) -> str:
    """Describe a payment: ``card 17, 35.00 of Bob``."""
    name, _, number = _message(event).partition("-")
    payment = None
    if name in Payment.Kind.values and number.isdecimal():
        payment = Payment.objects.select_related("account").filter(pk=int(number)).first()
    if payment is None:
        return f"message {event.get('message_id') or 'without an id'}"
    return f"{name} {number}, {payment.amount} of {payment.account.holder}"
