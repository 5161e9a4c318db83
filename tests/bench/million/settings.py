"""The tests' project with the filled database, with production settings."""

import os

from tests.settings import *  # noqa: F403 - settings are made to be extended
from tests.tooling.filled import VARIABLE, given

ALLOWED_HOSTS = ["testserver"]
DATABASES = {"default": given(os.environ.get(VARIABLE))}
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"django_rmq_retry": {"level": "ERROR"}}}
