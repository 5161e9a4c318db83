"""The order of our pages on the index and in the sidebar of an admin site: that of an operator's work."""

from functools import partial
from typing import Any

from django.contrib.admin import AdminSite

from django_rmq_retry.models import (
    ApprovalRequest,
    BlockedKey,
    ConsumerProcess,
    ErrorGroup,
    LiveStatus,
    OperatorAction,
    OutboxMessage,
    ParkedMessage,
    QueueControl,
    RequeueRun,
)
from django_rmq_retry.parked.operators import LABEL

ORDER = (
    *(LiveStatus, ApprovalRequest, ErrorGroup, ParkedMessage, RequeueRun, QueueControl),
    *(ConsumerProcess, BlockedKey, OutboxMessage, OperatorAction),
)
PLACES = {model.__name__: place for place, model in enumerate(ORDER)}


def put_in_order(site: AdminSite) -> None:
    """Let a site list our pages in this order; Django's is the alphabet's, which differs in each language."""
    listed = site.get_app_list
    if not (isinstance(listed, partial) and listed.func is _in_order):
        site.get_app_list = partial(_in_order, listed)  # type: ignore[method-assign]  # of this site alone


def _in_order(listed: Any, *args: Any, **kwargs: Any) -> list[Any]:
    apps: list[Any] = listed(*args, **kwargs)
    for app in apps:
        if app["app_label"] == LABEL:
            app["models"].sort(key=lambda model: PLACES.get(model["object_name"], len(PLACES)))
    return apps
