"""An endless day at the bank: a payment each second, some failures, and an outage now and then."""

import time
from itertools import cycle
from typing import NoReturn

from django_rmq_retry.errors import PublishError
from testproject.payments import gateway
from testproject.payments.models import Gateway
from testproject.playing.customers import CLOSED, LIMIT, OPEN, pay, send_rubbish
from testproject.playing.stage import Stage

PAUSE = 1.0
FIRST, LENGTH, EVERY = 15, 30, 150
"""Seconds: the start of the first outage, its length, and the interval between outages."""
TOTAL = 15
KINDS = ("card", "card", "card", "transfer", "card", "card", "cash", "card")


class Stream:
    """The stream of payments; each kind of failure occurs within half a minute."""

    def __init__(self, stage: Stage, address: str) -> None:
        self._stage = stage
        self._address = address
        self._number = 0
        self._accounts = cycle(OPEN)
        self._closed = cycle(CLOSED)
        self._kinds = cycle(KINDS)
        self._down = False

    def run(self) -> NoReturn:
        """Run until the end is requested."""
        begun = time.monotonic()
        while True:
            self._stage.step()
            seconds = int((time.monotonic() - begun) / PAUSE)
            while self._number < seconds:
                self._second(seconds)

    def _second(self, now: int) -> None:
        # A demo that was stopped for a while (Ctrl-Z) does not catch up.
        self._number = now
        self._weather((now - FIRST) % EVERY < LENGTH and now >= FIRST)
        try:
            self._customer(now)
        except PublishError as error:
            self._stage.say(f"          not sent: {error}", "WARNING")
        if now % TOTAL == 0:
            self._stage.say(f"          so far  {self._stage.tally.total()}   {self._address}admin/", "MIGRATE_HEADING")

    def _weather(self, down: bool) -> None:  # noqa: FBT001 - its only argument
        if down == self._down:
            return
        self._down = down
        # A state that the user set in the admin is left alone.
        before, after, verb = ("up", "down", "does not answer") if down else ("down", "up", "answers again")
        if gateway.mode() == Gateway.Mode(before):
            gateway.become(after)
            self._stage.say(f"          the other bank {verb}", "MIGRATE_HEADING")

    def _customer(self, number: int) -> None:
        if number % 17 == 5:  # noqa: PLR2004 - chosen, like the others, so that failures rarely coincide
            send_rubbish()
        if number % 13 == 3:  # noqa: PLR2004
            pay(next(self._closed), "card", 20 + number % 60)
        elif number % 11 == 2:  # noqa: PLR2004
            pay(next(self._accounts), "cash", LIMIT + 50 * (1 + number % 7))
        else:
            pay(next(self._accounts), next(self._kinds), 5 + 7 * number % 90)
