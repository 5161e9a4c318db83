"""The shop's settings; the environment has the broker and the values that a test changes."""

import os
from datetime import timedelta

from tests.tooling.filled import VARIABLE, given

SECRET_KEY = "only-for-tests"
DEBUG = bool(os.environ.get("SHOP_DEBUG"))
USE_TZ = True
if VARIABLE in os.environ:
    DATABASES = {"default": given(os.environ[VARIABLE])}
else:
    # In a file, because a database in memory is separate for each thread, and Django closes none of them.
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{os.environ.get('SHOP_NOTES')}.sqlite3"}}
OWN_APPS = os.environ.get("SHOP_APPS", "tests.shop").split()
NEEDED_APPS = ("django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry")
INSTALLED_APPS = list(dict.fromkeys((*NEEDED_APPS, *OWN_APPS)))


class Nowhere:
    """A router that allows no table of the package."""

    def allow_migrate(self, _alias: str, label: str, **_hints: object) -> bool | None:
        return False if label == "rmq_retry" else None


DATABASE_ROUTERS = [] if VARIABLE in os.environ else [Nowhere()]
RMQ_RETRY = {
    "URL": os.environ.get("RMQ_URL", "amqp://guest:guest@127.0.0.1:1/"),
    "QUEUE_TYPE": "classic",
    # Tests that read the parked queues need the messages there.
    "RECORDS": VARIABLE in os.environ and os.environ.get("SHOP_RECORDS") != "no",
    "OUTBOX": VARIABLE in os.environ,
    "PARKED_QUEUES": os.environ.get("SHOP_PARKED_QUEUES", "").split(),
    "AROUND": os.environ.get("SHOP_AROUND", "").split(),
}
if os.environ.get("SHOP_TASKS"):
    options = {"results": timedelta(days=7), "keys": {"default": "tests.tasks.office.keys.addressee"}}
    TASKS = {"default": {"BACKEND": "django_rmq_retry.tasks.RabbitBackend", "OPTIONS": options}}
if os.environ.get("SHOP_LOGS"):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"format": "OWN {levelname} {message}", "style": "{"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "own", "stream": "ext://sys.stdout"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    }
