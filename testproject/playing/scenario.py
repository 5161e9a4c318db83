"""``make demo ARGS=--check``: a short scenario that checks each visible promise."""

import time
from collections.abc import Callable, Iterator

from django.db.models import Sum

from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.parked.requeue import requeue
from django_rmq_retry.topology.declarations import Role
from testproject.accounts.models import Account
from testproject.payments import gateway, handlers
from testproject.payments.models import Entry, GatewayCharge, Payment
from testproject.playing.customers import BALANCE, CLOSED, LIMIT, OPEN, pay, send_rubbish
from testproject.playing.depths import depths
from testproject.playing.metrics import attempts
from testproject.playing.stage import Late, Stage
from testproject.playing.web import logs_in

ANN, BOB, CID, *_ = OPEN
GUS, HAL = CLOSED
GIVEN_UP = "Gave up after 5 attempts: GatewayDown: no answer from the other bank"


class Wrong(Exception):
    """A check failed; the text says which."""


class Scenario:
    """Steps that build on one another; each yields a sentence, or raises Wrong or Late."""

    def __init__(self, stage: Stage, address: str, metrics: str, *, until: float) -> None:
        self._stage = stage
        self._address = address
        self._metrics = metrics
        self._until = until
        self._parked: dict[str, str] = {}

    def run(self) -> Iterator[str]:
        """Yield one sentence for each step."""
        yield self._handled()
        yield self._answered()
        yield self._parked_with_reasons()
        yield self._retried()
        yield self._requeued()
        yield self._complete()
        yield self._measured()
        yield self._served()

    def _handled(self) -> str:
        sent = [pay(ANN, "card", 20), pay(BOB, "card", 35), pay(BOB, "transfer", 200), pay(CID, "cash", LIMIT)]
        self._await_paid(sent)
        return f"{len(sent)} payments were handled: card, transfer and cash."

    def _answered(self) -> str:
        rate = handlers.quote.call({"pair": "EURUSD"}, timeout=self._left())["rate"]
        return f"A question was answered while it waited: EURUSD is {rate}."

    def _parked_with_reasons(self) -> str:
        gateway.become("down")
        trouble = {pay(ANN, "card", 10 + number): GIVEN_UP for number in range(4)}
        trouble |= {pay(number, "card", 30): f"account {number} is closed" for number in (GUS, HAL)}
        trouble |= {pay(CID, "cash", LIMIT + more): "is above the limit of" for more in (100, 200)}
        trouble |= {send_rubbish(): "cannot be decoded" for _ in range(2)}
        parked = self._stage.tally.parked
        self._wait(lambda: trouble.keys() <= parked.keys(), f"{', '.join(trouble)} parked")
        for message, reason in trouble.items():
            if reason not in parked[message]:
                raise Wrong(f"{message} is parked with {parked[message]!r}, not with {reason!r}.")
        self._parked = trouble
        return (
            f"{len(trouble)} messages were parked, each with its reason: 4 times {GIVEN_UP!r}, and three others twice."
        )

    def _retried(self) -> str:
        sent = [pay(number, "card", 40) for number in (ANN, BOB, CID)]
        waiting = self._stage.tally.waiting
        self._wait(lambda: all(waiting.get(one, 0) > 1 for one in sent), "two attempts of each payment")
        gateway.become("up")
        self._await_paid(sent)
        attempts = [self._stage.tally.paid[one] for one in sent]
        if min(attempts) <= 2:  # noqa: PLR2004 - two have failed
            raise Wrong(f"The payments that failed twice were paid at the attempts {attempts}.")
        return f"{len(sent)} payments failed while the other bank was down, were retried, and paid as it was back."

    def _requeued(self) -> str:
        """Requeue all messages of one cause in one requeue run, as an operator would."""
        given_up = [message for message, reason in self._parked.items() if reason == GIVEN_UP]
        records = ParkedMessage.objects.filter(message_id__in=given_up)
        self._wait(lambda: records.filter(state=State.PARKED).count() == len(given_up), "records of what was parked")
        _see("The causes of what the other bank has not answered", records.values("group").distinct().count(), 1)
        run = requeue(records, by="the demo", reason="The other bank is back.")
        self._await_paid(given_up)
        self._wait(
            lambda: records.filter(state=State.PROCESSED).count() == len(given_up), "the outcomes in the records"
        )
        return (
            f"{len(given_up)} parked messages of one cause were requeued by requeue run {run.pk} and paid; "
            "their records are closed."
        )

    def _complete(self) -> str:
        paid = self._stage.tally.paid
        numbers = sorted(int(one.partition("-")[2]) for one in paid)
        _see("The payments in the ledger", sorted(Entry.objects.values_list("payment_id", flat=True)), numbers)
        posted = Payment.objects.filter(state=Payment.State.POSTED)
        _see("The payments that are marked as posted", sorted(posted.values_list("pk", flat=True)), numbers)
        cards = posted.filter(kind=Payment.Kind.CARD).count()
        _see("What the other bank has charged", GatewayCharge.objects.count(), cards)
        taken = posted.aggregate(sum=Sum("amount"))["sum"]
        left = Account.objects.aggregate(sum=Sum("balance"))["sum"]
        _see("The money that is left", left, BALANCE * len(OPEN | CLOSED) - taken)
        _see("What is parked", sorted(self._stage.tally.parked), sorted(self._parked.keys() - paid.keys()))
        self._wait(lambda: not self._under_way(), "that no message is in flight any more")
        return f"Each of the {len(paid)} payments is in the ledger once, and nothing else is; no message is in flight."

    def _measured(self) -> str:
        counted = attempts(self._metrics, "park")
        _see(f"The parked messages that {self._metrics} counts", counted, len(self._parked))
        return f"The metrics on {self._metrics} count the {counted} parked messages."

    def _served(self) -> str:
        if not logs_in(self._address, "admin", "admin"):
            raise Wrong(f"The admin on {self._address}admin/ does not let admin in with the password admin.")
        return f"The admin on {self._address}admin/ lets its user in."

    def _under_way(self) -> int:
        found = depths()
        return found[Role.WORK] + found[Role.WAITING] + found[Role.QUARANTINE]

    def _await_paid(self, messages: list[str]) -> None:
        self._wait(lambda: set(messages) <= self._stage.tally.paid.keys(), f"{', '.join(messages)} paid")

    def _wait(self, fact: Callable[[], object], what: str) -> None:
        try:
            self._stage.wait(fact, what, until=self._until)
        except Late as late:
            raise Wrong(f"In time there was not: {late}. So far: {self._stage.tally.total()}.") from late

    def _left(self) -> float:
        return max(1.0, self._until - time.monotonic())


def _see(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Wrong(f"{what}: {found!r} instead of {expected!r}.")
