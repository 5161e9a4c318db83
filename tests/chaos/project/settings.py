"""Settings of the project. Broker and database come from environment variables, which differ by process."""

import json
import os
from datetime import timedelta
from importlib.util import find_spec

from tests.tooling import clocks, databases

if "mysql" in json.loads(os.environ["CHAOS_DATABASE"])["ENGINE"]:
    databases.play_mysqlclient()
clocks.shift()
if os.environ.get("CHAOS_SWEEP"):
    from tests.chaos import sweeping

    sweeping.begin()
SECRET_KEY = "only-for-tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry", "tests.chaos.project"]
DATABASES = {"default": json.loads(os.environ["CHAOS_DATABASE"])}
TASKS = {
    "default": {
        "BACKEND": "django_rmq_retry.tasks.RabbitBackend",
        "QUEUES": ["chaos.task"],
        "OPTIONS": {"policies": {"chaos.task": "tests.chaos.project.handlers.patient"}, "results": timedelta(days=7)},
    }
}
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
RMQ_RETRY = {
    "URL": json.loads(os.environ["CHAOS_URL"]),
    "HEARTBEAT": 3,
    "CONNECT_TIMEOUT": 5,
    "PUBLISH_TIMEOUT": 5,
    # Each async handler holds a connection to the database, which allows a hundred.
    "ASYNC_HANDLERS": 20,
    "BLOCKED_TIMEOUT": 5,
    # In the sweep every process ends itself repeatedly, so no message is quarantined.
    "CRASH_LIMIT": 100 if os.environ.get("CHAOS_SWEEP") else 5,
}
