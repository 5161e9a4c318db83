"""Each run leaves a line in the file SHOP_NOTES."""

import threading

from django_rmq_retry import Broadcast, Delivery, Exchange, Fixed, Park, RetryThenPark, handler
from tests.shop.notes import note

PAUSE = threading.Event()
news = Exchange("news", "topic")


@handler("news.seen", ack="auto")
def see(message: Delivery) -> None:
    note(f"see {message.data}")
    if message.data == "fail":
        raise Park("nobody parks it")
    if message.data == "wait":
        PAUSE.wait(0.5)


@handler(Broadcast("news.cache", bindings=[news.bind("eur.#")]), policy=RetryThenPark(attempts=2, backoff=Fixed(0.1)))
def remember(message: Delivery) -> None:
    note(f"{message.data} {message.attempt}")
    if message.data == "fail":
        raise ValueError("it cannot be remembered")
