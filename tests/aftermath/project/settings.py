"""The shop's settings with connections that outlive a message, and a query before the consumer forks."""

import os

from tests.shop.settings import *  # noqa: F403 - settings are made to be extended
from tests.shop.settings import DATABASES, RMQ_RETRY

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_rmq_retry",
    "tests.aftermath.project.apps.Project",
]
DATABASES["default"] |= {"CONN_MAX_AGE": 60}
DATABASES["other"] = dict(DATABASES["default"])
if os.environ.get("AFTERMATH_POOL"):
    DATABASES["default"] |= {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": {"min_size": 2, "max_size": 8}}}
RMQ_RETRY = {**RMQ_RETRY, "QUEUE_TYPE": "quorum"}
if os.environ.get("AFTERMATH_HOOK"):
    RMQ_RETRY["AROUND"] = [f"tests.aftermath.project.hooks.{name}" for name in os.environ["AFTERMATH_HOOK"].split()]
