"""Django's settings in a trial: the tests' own project and one handler; warnings are logged, as with `-v 0`."""

from tests.bench.task import Task
from tests.settings import *  # noqa: F403 - settings are made to be extended
from tests.settings import INSTALLED_APPS as OTHERS
from tests.tooling.filled import given

INSTALLED_APPS = [*OTHERS, "tests.bench.project"]
task = Task.given()
RMQ_RETRY = {"URL": task.url, "RECORDS": bool(task.database)}  # type: ignore[dict-item]  # the tests' own has texts only
if task.watched == "traces":
    RMQ_RETRY["AROUND"] = ["tests.bench.project.tracing.sampled"]  # type: ignore[assignment]  # as above
if task.database:
    kept = {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True} if task.kept else {}
    DATABASES = {"default": {**given(task.database), **kept}}
