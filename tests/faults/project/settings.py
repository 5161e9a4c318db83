"""The tests' settings, with that handler."""

import os

from tests.settings import SECRET_KEY as TESTS_KEY
from tests.tooling.filled import VARIABLE, given

SECRET_KEY = TESTS_KEY
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry", "tests.faults.project"]
DATABASES = {"default": given(os.environ.get(VARIABLE))}
# Who looks into the parked queue must find something there.
RMQ_RETRY = {"URL": os.environ["FAULTS_URL"], "RECORDS": VARIABLE in os.environ}
if os.environ.get("FAULTS_BREAK") == "settings":
    RMQ_RETRY["PUBLISH_TIMOUT"] = 5
