"""The tests' settings, with those handlers."""

import os

from tests.settings import SECRET_KEY as TESTS_KEY
from tests.tooling.filled import VARIABLE, given

SECRET_KEY = TESTS_KEY
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rmq_retry", "tests.breakers.project"]
DATABASES = {"default": given(os.environ[VARIABLE])}
RMQ_RETRY = {"URL": os.environ["BANK_URL"]}
