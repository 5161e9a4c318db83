"""Effects of handlers: rows written in the same transaction as the product's rows."""

from django.db import models


class Effect(models.Model):
    """One completed attempt of a handler. No column is unique, so that duplicates are visible."""

    objects: models.Manager["Effect"] = models.Manager()
    name = models.CharField(max_length=80)
    attempt = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.name


class Sale(models.Model):
    """A row written in the transaction that publishes a message."""

    objects: models.Manager["Sale"] = models.Manager()
    name = models.CharField(max_length=80)

    def __str__(self) -> str:
        return self.name


class Account(models.Model):
    """An account: the money, and the sum that a second handler read from the messages about it."""

    objects: models.Manager["Account"] = models.Manager()
    cents = models.BigIntegerField(default=0)
    reported = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.pk}: {self.cents}"


class Payment(models.Model):
    """A payment, to be booked once."""

    objects: models.Manager["Payment"] = models.Manager()
    account = models.PositiveIntegerField()
    cents = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.pk}: {self.cents}"


class Booking(models.Model):
    """One booking of a payment; ``leg`` names the handler."""

    objects: models.Manager["Booking"] = models.Manager()
    payment = models.BigIntegerField()
    leg = models.CharField(max_length=10)

    def __str__(self) -> str:
        return f"{self.payment} {self.leg}"
