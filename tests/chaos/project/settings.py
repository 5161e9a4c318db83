"""Its settings: where broker and database are is told by the environment, each process may be told otherwise."""

import json
import os

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
}
