"""Django's settings in the process of a walk: records, history and outbox are on, as they are by default."""

from tests.bench.task import Task
from tests.settings import *  # noqa: F403 - settings are made to be extended
from tests.settings import INSTALLED_APPS as OTHERS
from tests.tooling.filled import given

INSTALLED_APPS = [*OTHERS, "tests.bench.walks"]
task = Task.given()
RMQ_RETRY = {"URL": task.url}
DATABASES = {"default": {**given(task.database), "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}}
