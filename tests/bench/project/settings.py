"""Django's settings in a trial: the tests' own project and one handler; warnings are logged, as with `-v 0`."""

from tests.bench.task import Task
from tests.settings import *  # noqa: F403 - settings are made to be extended
from tests.settings import INSTALLED_APPS as OTHERS

INSTALLED_APPS = [*OTHERS, "tests.bench.project"]
RMQ_RETRY = {"URL": Task.given().url}
