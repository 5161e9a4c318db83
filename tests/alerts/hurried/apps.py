"""Shortens the waits of alerts in the shop's processes."""

from django.apps import AppConfig


class Hurried(AppConfig):
    name = "tests.alerts.hurried"

    def ready(self) -> None:
        # Modules with models are imported when the apps are ready.
        from django_rmq_retry.alerts import ledger, watch  # noqa: PLC0415 - as above

        ledger.LASTS_SECONDS = 0.0
        watch.ALERT_LOOK_SECONDS = 0.2
