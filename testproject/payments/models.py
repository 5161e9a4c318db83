"""Payments, their ledger entries, and the state and memory of the other bank."""

import uuid

from django.db import models

from testproject.accounts.models import Account


class Payment(models.Model):
    class Kind(models.TextChoices):
        CARD = "card"
        CASH = "cash"
        TRANSFER = "transfer"

    class State(models.TextChoices):
        NEW = "new"
        CHARGED = "charged"
        POSTED = "posted"

    reference = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="payments")
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    state = models.CharField(max_length=10, choices=State.choices, default=State.NEW, editable=False)
    attempts = models.PositiveIntegerField(default=0, editable=False)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)
        constraints = (models.CheckConstraint(condition=models.Q(amount__gt=0), name="payment_is_above_0"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.amount} of {self.account.number}"


class Entry(models.Model):
    """An entry of the ledger; a payment has at most one."""

    payment = models.OneToOneField(Payment, on_delete=models.PROTECT)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    balance = models.DecimalField(max_digits=12, decimal_places=2)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pk",)
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return f"{self.account.number}: {self.amount}"


class Gateway(models.Model):
    """The state of the other bank; there is one row."""

    class Mode(models.TextChoices):
        UP = "up", "answers"
        DOWN = "down", "does not answer"
        SLOW = "slow", "answers after a while"
        BUSY = "busy", "says when to come back"
        REFUSE = "refuse", "refuses"

    mode = models.CharField(max_length=10, choices=Mode.choices, default=Mode.UP)

    class Meta:
        verbose_name_plural = "gateway"

    def __str__(self) -> str:
        return f"The other bank {self.get_mode_display()}"


class GatewayCharge(models.Model):
    """A charge at the other bank, which accepts each reference once."""

    reference = models.UUIDField(unique=True)
    amount = models.DecimalField(max_digits=12, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.reference}: {self.amount}"
