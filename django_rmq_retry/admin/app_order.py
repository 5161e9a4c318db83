"""The order of our pages on the index and in the sidebar of an admin site: that of an operator's work."""

from functools import partial
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest

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
SITE_INDEX = "admin/rmq_retry/site_index.html"
PLACES = {model.__name__: place for place, model in enumerate(ORDER)}


def put_in_order(site: AdminSite) -> None:
    """Let a site list our pages in this order; Django's is the alphabet's, which differs in each language.

    Our card is put on its index if the project has not chosen a template for it. It extends the project's or the
    theme's ``admin/index.html``.
    """
    site.index_template = site.index_template or SITE_INDEX
    listed = site.get_app_list
    if not (isinstance(listed, partial) and listed.func is _in_order):
        site.get_app_list = partial(_in_order, listed, site)  # type: ignore[method-assign]  # of this site alone


def _in_order(listed: Any, site: AdminSite, request: HttpRequest, *args: Any, **kwargs: Any) -> list[Any]:
    apps: list[Any] = listed(request, *args, **kwargs)
    for app in apps:
        if app["app_label"] == LABEL:
            app["models"].sort(key=lambda model: PLACES.get(model["object_name"], len(PLACES)))
            verdict = _verdict(site, request)
            if verdict:
                app["name"] = f"{app['name']} · {verdict}"
    return apps


def _verdict(site: AdminSite, request: HttpRequest) -> str:
    """Return what an index without our card says of us, in our place of its list, which links to our own index.

    The site asks twice for one page.
    """
    match = request.resolver_match
    if match is None or match.url_name != "index" or not site.is_registered(LiveStatus):
        return ""
    if site.index_template == SITE_INDEX:
        return ""
    known: dict[str, str] = request.__dict__.setdefault("rmq_verdict", {})
    if site.name not in known:
        pages: Any = site.get_model_admin(LiveStatus)
        known[site.name] = pages.verdict(request)
    return known[site.name]
