"""A process that is killed between sending an alert and recording it: ``python -m tests.alerts.dying``."""

import os
import signal
from collections.abc import Callable
from importlib import import_module

import django
from django.conf import settings

from tests.tooling.filled import VARIABLE, given


def dying(send: Callable[..., object]) -> Callable[..., object]:
    def called(*args: object) -> None:
        send(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    return called


def main() -> None:
    settings.configure(
        SECRET_KEY="only-for-tests",
        USE_TZ=True,
        DATABASES={"default": given(os.environ[VARIABLE])},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry"],
        RMQ_RETRY={
            "URL": "amqp://127.0.0.1:1",
            "ALERTS": {"WEBHOOK": os.environ["HOOK"], "SECRET": "0123456789abcdef-signs"},
        },
    )
    django.setup()
    # This import needs the settings.
    from django_rmq_retry.alerts import ledger  # noqa: PLC0415 - as above

    ledger.LASTS_SECONDS = 0.0
    ways = import_module("django_rmq_retry.alerts.ways")
    ways.Webhook.send = dying(ways.Webhook.send)
    watcher = import_module("django_rmq_retry.alerts.watch").AlertWatcher()
    while True:
        watcher.look()


if __name__ == "__main__":
    main()
