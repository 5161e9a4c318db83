"""The shop's settings with the lifespan that a test asks for."""

import os

from tests.shop.settings import *  # noqa: F403 - settings are made to be extended
from tests.shop.settings import RMQ_RETRY as SHOP

RMQ_RETRY = {**SHOP, "LIFESPAN": os.environ.get("LOOP_LIFESPAN") or None}
