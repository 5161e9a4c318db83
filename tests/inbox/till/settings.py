"""The shop's settings for the till, with a heartbeat short enough for a test."""

import os

from tests.shop.settings import *  # noqa: F403 - settings are made to be extended
from tests.shop.settings import RMQ_RETRY as SHOPS
from tests.tooling import clocks

clocks.shift()

RMQ_RETRY = {**SHOPS, "QUEUE_TYPE": "quorum", "HEARTBEAT": int(os.environ.get("TILL_HEARTBEAT", "15"))}
