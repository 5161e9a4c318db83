"""Heartbeats of a consumer that is only played."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from django_rmq_retry.consumer.consumer import Consumer
from django_rmq_retry.consumer.heartbeat import Heartbeat


def running(**known: object) -> Any:
    """What a heartbeat reads of a consumer."""
    nothing = {
        "idle": SimpleNamespace(look=lambda _now: None, at={}),
        "in_flight": [],
        "why": "",
        "online": True,
        "waiting": 0,
        "fault": "",
        "gave_back": False,
    }
    return SimpleNamespace(**{**nothing, **dict.fromkeys(("stuck_since", "lost_since", "closing_since")), **known})


def heartbeat_of(runs: Any, *, queues: Sequence[str] = ("payments",)) -> Heartbeat:
    return Heartbeat(cast("Consumer", runs), name="this", number=0, package="", threads=4, queues=queues)
