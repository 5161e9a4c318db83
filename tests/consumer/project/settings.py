"""The settings of the breakers' project, with other handlers."""

import os

from tests.breakers.project.settings import (  # noqa: F401 - Django reads them here
    DATABASES,
    RMQ_RETRY,
    SECRET_KEY,
    USE_TZ,
)

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry", "tests.consumer.project"]
RECORDS = os.environ.get("BANK_RECORDS") != "no"
RMQ_RETRY = {**RMQ_RETRY, "VERSION": "2026.11", "RECORDS": RECORDS}  # type: ignore[dict-item]  # it has texts only
