"""Accounts and their balances."""

from django.db import models


class Account(models.Model):
    number = models.CharField(max_length=34, unique=True)
    holder = models.CharField(max_length=100)
    balance = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    limit = models.DecimalField(
        max_digits=12, decimal_places=2, default=500, help_text="The most cash that may be taken out at once."
    )
    closed = models.BooleanField(default=False)

    class Meta:
        ordering = ("number",)
        constraints = (models.CheckConstraint(condition=models.Q(balance__gte=0), name="account_is_covered"),)

    def __str__(self) -> str:
        return f"{self.number} ({self.holder})"
