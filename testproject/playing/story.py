"""The story: what is published, what breaks, and what mends it."""

from collections.abc import Callable
from decimal import Decimal

from django.db import transaction
from django.db.models import QuerySet

from django_rmq_retry import Raw, publish
from django_rmq_retry.core.declarations import Role
from testproject.accounts.models import Account
from testproject.payments import gateway, handlers
from testproject.payments.models import Payment
from testproject.payments.sending import send
from testproject.playing.depths import depths
from tests.tooling.waiting import wait_until

LONG = 120.0


class Story:
    """Told by ``say``; waits for facts, never for a while."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.payments: list[Payment] = []

    def tell(self) -> None:
        ann, bob, cid, dee = self.accounts()
        self.say("The other bank is down. Card payments, cash, a transfer and some trouble come in.")
        gateway.become("down")
        with transaction.atomic():
            for account, amount in ((ann, 20), (bob, 35), (ann, 50)):
                self.pay(account, "card", amount)
            self.pay(dee, "card", 10)
            self.pay(ann, "transfer", 200)
            self.pay(ann, "cash", 100)
            above = [self.pay(bob, "cash", 700), self.pay(cid, "cash", 900)]
            self.pay(ann, "card", 5, delay=600)
        publish(b'{"payment": 1', routing_key="payments.charge", codec=Raw(), message_id="malformed")
        self.say(f"Meanwhile somebody asks for a rate: {handlers.quote.call({'pair': 'EURUSD'})}")
        self.wait(lambda: self.tried(2), "two attempts of each card payment")
        self.say("The other bank answers again; the card payments come through at their next attempt.")
        gateway.become("up")
        self.say(f"Bob may take out 1,000 from now on; Cid's {above[1].amount} stay above the limit.")
        Account.objects.filter(pk=bob.pk).update(limit=1000)
        self.wait(lambda: self.posted("card") == len((ann, bob, ann)), "the card payments")
        self.wait(lambda: self.posted("cash") == len((ann, bob)), "cash for Ann and Bob")
        self.say("Cid's withdrawal is tried four times in all, then parked for a person to look at.")
        self.wait(lambda: depths()[Role.PARKED] == len((dee, cid, "malformed")), "Cid's withdrawal parked")

    def accounts(self) -> list[Account]:
        rows = (("DE-1", "Ann", False), ("DE-2", "Bob", False), ("DE-3", "Cid", False), ("DE-4", "Dee", True))
        return [
            Account.objects.update_or_create(
                number=number,
                defaults={"holder": holder, "balance": Decimal(1000), "limit": Decimal(500), "closed": closed},
            )[0]
            for number, holder, closed in rows
        ]

    def pay(self, account: Account, kind: str, amount: int, *, delay: float | None = None) -> Payment:
        payment = Payment.objects.create(account=account, kind=kind, amount=Decimal(amount))
        self.payments.append(payment)
        if kind == Payment.Kind.CASH:
            send(payment, reply_to="reply-queue", correlation_id=f"cash-{payment.pk}")
        else:
            send(payment, delay=delay)
        return payment

    def tried(self, times: int) -> bool:
        """Whether each card payment that can be tried was tried so often."""
        mine = self.mine(kind=Payment.Kind.CARD, account__closed=False).exclude(amount=5)
        return not mine.filter(attempts__lt=times).exists()

    def posted(self, kind: str) -> int:
        return self.mine(kind=kind, state=Payment.State.POSTED).count()

    def mine(self, **which: object) -> "QuerySet[Payment]":
        return Payment.objects.filter(pk__in=[payment.pk for payment in self.payments], **which)

    def wait(self, fact: Callable[[], bool], what: str) -> None:
        wait_until(fact, LONG, what=what, step=0.2)
