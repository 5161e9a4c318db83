"""Settings for Django's own tests of task backends."""

import os

from django_rmq_retry import Queue

SECRET_KEY = "only-for-tests"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "unused.sqlite3",
        # In a file, because a database in memory is separate for each thread.
        "TEST": {"NAME": "tests.sqlite3"},
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry"]
QUEUES = ["default", "queue_1", "queue-2", "unknown_queue"]
"""The queues that the tests name; a consumer takes the queues that have names."""
TASKS = {"default": {"BACKEND": "tests.foreign.django_tasks.Storing", "QUEUES": QUEUES}}
URL = os.environ.get("URL", "embedded://")
RMQ_RETRY = {
    "URL": URL,
    "TOPOLOGY": [Queue(name, type="classic", max_priority=10) for name in QUEUES],
}
