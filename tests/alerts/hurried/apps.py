"""Shortens the waits of alerts in the shop's processes."""

from importlib import import_module

from django.apps import AppConfig


class Hurried(AppConfig):
    name = "tests.alerts.hurried"

    def ready(self) -> None:
        import_module("django_rmq_retry.alerts.ledger").LASTS_SECONDS = 0.0  # type: ignore[attr-defined]
        import_module("django_rmq_retry.alerts.watch").ALERT_LOOK_SECONDS = 0.2  # type: ignore[attr-defined]
