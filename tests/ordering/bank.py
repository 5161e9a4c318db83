"""The handler of these tests: it notes its postings, and fails as the test demands."""

from typing import Any

from django_rmq_retry import Delivery, Fixed, Handler, RetryThenPark, handler
from django_rmq_retry.models import BlockedKey, BlockedMessage

QUEUE = "bank.post"


class BankDown(Exception):
    """Raised for a failure that may succeed at another attempt."""


class Closed(Exception):
    """Raised for a failure that no attempt resolves."""


class Bank:
    """Postings are numbers; ``down`` has the failures of each, and those in ``closed`` are parked."""

    def __init__(self, **options: Any) -> None:
        self.began: list[int] = []
        self.posted: list[int] = []
        self.down: dict[int, int] = {}
        self.closed: set[int] = set()
        policy = RetryThenPark(attempts=3, backoff=Fixed(10), park_on=Closed)
        wanted = {"policy": policy, "order_by": lambda message: message.data["account"], "name": "post", **options}
        self.post: Handler[None] = handler(QUEUE, **wanted)(self._post)

    def _post(self, message: Delivery) -> None:
        number = message.data["number"]
        self.began.append(number)
        if number in self.closed:
            raise Closed(number)
        if self.down.get(number):
            self.down[number] -= 1
            raise BankDown(number)
        self.posted.append(number)

    def publish(self, *numbers: int, account: str = "A", **options: Any) -> None:
        for number in numbers:
            self.post.publish({"account": account, "number": number}, message_id=f"m{number}", **options)


def blocked(using: str = "default") -> dict[str, tuple[str, bool, int]]:
    """Return for each blocked key the first message, its parked flag and the number of waiting messages."""
    rows = BlockedKey.objects.using(using).order_by("pk")
    return {row.key: (row.blocker, row.parked, row.waiting) for row in rows}


def waiting(using: str = "default") -> list[str]:
    return list(BlockedMessage.objects.using(using).order_by("pk").values_list("shown", flat=True))
