"""What handlers do: rows that are written in the same transaction as the product's own."""

from django.db import models


class Effect(models.Model):
    """One run of a handler that came to its end. Nothing is unique: what is done twice is to be seen."""

    objects: models.Manager["Effect"] = models.Manager()
    name = models.CharField(max_length=80)
    attempt = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.name


class Sale(models.Model):
    """Written in the transaction that publishes."""

    objects: models.Manager["Sale"] = models.Manager()
    name = models.CharField(max_length=80)

    def __str__(self) -> str:
        return self.name


class Account(models.Model):
    """Money, and beside it what a second handler made of the messages about it."""

    objects: models.Manager["Account"] = models.Manager()
    cents = models.BigIntegerField(default=0)
    told = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.pk}: {self.cents}"


class Payment(models.Model):
    """What is to be booked once."""

    objects: models.Manager["Payment"] = models.Manager()
    account = models.PositiveIntegerField()
    cents = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.pk}: {self.cents}"


class Booking(models.Model):
    """One time that a payment was booked; ``leg`` says by which handler."""

    objects: models.Manager["Booking"] = models.Manager()
    payment = models.BigIntegerField()
    leg = models.CharField(max_length=10)

    def __str__(self) -> str:
        return f"{self.payment} {self.leg}"
