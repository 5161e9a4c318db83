"""The shop's settings; the environment says which broker, and what else a test changes."""

import os

SECRET_KEY = "only-for-tests"
DEBUG = bool(os.environ.get("SHOP_DEBUG"))
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django_rmq_retry", *os.environ.get("SHOP_APPS", "tests.shop").split()]
RMQ_RETRY = {"URL": os.environ.get("RMQ_URL", "amqp://guest:guest@127.0.0.1:1/"), "QUEUE_TYPE": "classic"}
if os.environ.get("SHOP_LOGS"):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"format": "OWN {levelname} {message}", "style": "{"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "own", "stream": "ext://sys.stdout"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    }
