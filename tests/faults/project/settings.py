"""The tests' settings, with that handler."""

import os

from tests.settings import INSTALLED_APPS as TESTS_APPS
from tests.settings import SECRET_KEY as TESTS_KEY

SECRET_KEY = TESTS_KEY
USE_TZ = True
INSTALLED_APPS = [*(app for app in TESTS_APPS if app == "django_rmq_retry"), "tests.faults.project"]
RMQ_RETRY = {"URL": os.environ["FAULTS_URL"]}
