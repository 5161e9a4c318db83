"""The template tags: the filters of ``markup``, and the parts that pages share with pages of Django."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django import template
from django.apps import apps
from django.contrib.admin.sites import all_sites
from django.db import Error
from django.template import Context
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock, markup
from django_rmq_retry.conf import settings
from django_rmq_retry.health.doubts import OF_RUNS, finding_of
from django_rmq_retry.health.processes import lost_since_now
from django_rmq_retry.health.rules import Code
from django_rmq_retry.models import GatedAct, LiveStatus
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import needs_second
from django_rmq_retry.parked.operators import LABEL, refusal
from django_rmq_retry.wording import number

LEADING = (*(Code.HANDLED_TWICE, Code.HANDLED_ANYWAY, Code.PERHAPS_TWICE, Code.RUN_PERHAPS_TWICE, Code.RUN_PAUSED),)
"""What a few lines must not leave out: money that may have moved twice, and a run that paused itself, which sends
nothing while its operator may believe that it does."""
register = template.Library()
register.filter("rmq_ago", markup.time_ago)
register.filter("rmq_badge", markup.badge)
register.filter("rmq_clock", markup.time_exact)
register.filter("rmq_count", markup.count_or_dash)
register.filter("rmq_finding", finding_of)
register.filter("rmq_minute", markup.time_minute)
register.filter("rmq_name", markup.name)
register.filter("rmq_second", markup.time_second)
register.filter("rmq_state", markup.state_badge)
register.filter("rmq_span", markup.time_span)
register.filter("rmq_visible", markup.visible)
register.filter("rmq_wrapping", markup.wrapping)


@register.simple_tag
def rmq_spark(counts: Sequence[int], title: str) -> SafeString:
    """Draw small bars, with a sentence for users of a screen reader."""
    return mark_safe(markup.sparkline(counts, title=title))  # noqa: S308 - it escapes its title


@register.simple_tag
def rmq_chart(counts: Sequence[int], starts: Sequence[datetime], title: str) -> SafeString:
    """Draw larger bars with their times."""
    return mark_safe(markup.chart(counts, starts, title=title))  # noqa: S308 - it escapes its title


@register.simple_tag(takes_context=True)
def rmq_address(context: Context, page: str, number: object) -> str:
    """Return the address of a page about one row, as Django's own tag does, in a fraction of its time: for loops."""
    return markup.address_of(page, number, getattr(context.get("request"), "current_app", None))


@register.simple_tag(takes_context=True)
def rmq_nonce(context: Context) -> SafeString:
    """Return the nonce of a strict CSP, from Django's own middleware or django-csp; empty without one."""
    nonce = context.get("csp_nonce")
    if nonce is None:
        request = context.get("request")
        # Django's own has this name where its context processor has not run.
        nonce = getattr(request, "csp_nonce", None) or getattr(request, "_csp_nonce", "")
    # Django creates its nonce when it is first converted to text; before that it is false.
    return format_html(' nonce="{}"', nonce) if str(nonce) else SafeString("")


@register.simple_tag
def rmq_now() -> datetime:
    """Return the time at which a page is made, by the database's clock."""
    return database_clock.reckoned(records_alias())


@register.simple_tag
def rmq_lost_since() -> datetime | None:
    """Return since when no consumer reaches the broker, for the banner of a broker that is away; None if unknown."""
    with suppress(Error):
        return lost_since_now()
    return None


@register.simple_tag
def rmq_second_person(act: str, count: int) -> SafeString | str:
    """Return the note that a button only asks for an act on so many messages; empty if it acts."""
    if not needs_second(GatedAct(act), count):
        return ""
    text = _("A second person has to approve this. The button asks for it, and does nothing yet.")
    if act == GatedAct.CLOSE_BREAKER:
        text = _("A second person has to approve that a breaker is closed. The button asks for it.")
    return format_html('<p class="rmq-note rmq-info">{}</p>', text)


@register.inclusion_tag("admin/rmq_retry/parts/card.html", takes_context=True)
def rmq_card(context: Context, most: int = 5) -> dict[str, Any]:
    """Return what the live status says, for the head of an index: of the app, or of the site."""
    request = context["request"]
    pages = _live_status(request)
    if pages is None or refusal(request.user, "view_status"):
        return {}
    with suppress(Error):
        summary = pages.summary(request)
        # What a run sends is told with the run.
        every = [need for need in summary["needs"] if not need.under_way]
        needs = _few(every, most)
        kinds = Counter(need.kind for need in every if need not in needs)
        named = " · ".join(f"{kind} {number(count)}" for kind, count in kinds.items())
        # The finding begins with the number of parked messages.
        told = any(need.problem.rule.known_as == "PARKED" for need in needs)
        return {**summary, "needs": needs, "more": kinds.total(), "kinds": named, "told": told}
    return {}


def _few(needs: Sequence[Any], most: int) -> list[Any]:
    """Return the first of the findings, one of each run's kind, and below them one of each leading kind.

    It takes no worse one's place, and four runs with doubles don't take the places of the breakers behind them.
    """
    kinds = [need.problem.code for need in needs]
    first = [need for at, need in enumerate(needs) if kinds[at] not in OF_RUNS or kinds[at] not in kinds[:at]][:most]
    told = {need.problem.code for need in first}
    leads = [next((need for need in needs if need.problem.code is code), None) for code in LEADING if code not in told]
    return [need for need in needs if need in first or need in leads]


@register.inclusion_tag("admin/rmq_retry/parts/site_card.html", takes_context=True)
def rmq_site_card(context: Context) -> dict[str, Any]:
    """Return the same for the index of the site, which has no frame of ours: with the environment and the search."""
    frame = {"request": context["request"], "rmq_environment": settings().operators.environment}
    return {**rmq_card(context, most=3), **frame, "title": apps.get_app_config(LABEL).verbose_name}


@register.inclusion_tag("admin/rmq_retry/parts/find.html", takes_context=True)
def rmq_find(context: Context) -> dict[str, Any]:
    """Return the field that finds messages, which is in the frame of every page; in their list it keeps the filters.

    It is beside the breadcrumbs, and beside the title in a theme that leaves our breadcrumbs out: only the first one
    of a page is shown.
    """
    request = context["request"]
    if request.__dict__.get("rmq_finds"):
        return {}
    request.rmq_finds = True
    name = getattr(request, "current_app", None)
    finds = reverse("admin:rmq_retry_parkedmessage_changelist", current_app=name)
    return {"finds": "" if refusal(request.user, "view") else finds, "cl": context.get("cl"), "request": request}


@register.inclusion_tag("admin/rmq_retry/parts/head.html")
def rmq_head(title: str) -> dict[str, Any]:
    """Return the head of a page that is Django's own: the environment and the title."""
    return {"rmq_environment": settings().operators.environment, "title": title}


@register.inclusion_tag("admin/rmq_retry/parts/help.html", takes_context=True)
def rmq_help(context: Context) -> dict[str, Any]:
    """Return the dialog of the keyboard shortcuts for a page that is Django's own."""
    pages = _live_status(context["request"])
    return {} if pages is None else dict(pages.frame(context["request"]))


def _live_status(request: Any) -> Any:
    """Return the page of the live status on the site of a request; the pages are above the tags."""
    name = getattr(request, "current_app", None)
    site = next((one for one in all_sites if one.name == name and one.is_registered(LiveStatus)), None)
    return None if site is None else site.get_model_admin(LiveStatus)
