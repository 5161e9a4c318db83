"""Settings of the project. Broker and database come from environment variables, which differ by process."""

import json
import os

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
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
RMQ_RETRY = {
    "URL": json.loads(os.environ["CHAOS_URL"]),
    "HEARTBEAT": 3,
    "CONNECT_TIMEOUT": 5,
    "PUBLISH_TIMEOUT": 5,
    "BLOCKED_TIMEOUT": 5,
    # In the sweep every process ends itself repeatedly, so no message is quarantined.
    "CRASH_LIMIT": 100 if os.environ.get("CHAOS_SWEEP") else 5,
}
