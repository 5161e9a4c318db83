"""Payments, the ledger and the gateway to another bank."""

from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    name = "testproject.payments"
