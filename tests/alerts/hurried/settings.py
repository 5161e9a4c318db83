"""The shop's settings with a webhook."""

import os

from tests.shop import settings as shop
from tests.shop.settings import *  # noqa: F403 - settings

INSTALLED_APPS = [*shop.INSTALLED_APPS, "tests.alerts.hurried"]
RMQ_RETRY = {
    **shop.RMQ_RETRY,
    "ALERTS": {"WEBHOOK": os.environ["HOOK"], "SECRET": "0123456789abcdef-signs", "WINDOW": 0.1},
}
