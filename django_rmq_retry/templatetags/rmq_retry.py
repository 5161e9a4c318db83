"""Template tags: times, time spans, badges and small charts. All input is escaped."""

import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django import template
from django.apps import apps
from django.contrib.admin.sites import all_sites
from django.db import DatabaseError
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.models import GatedAct, ItemState, LiveStatus, RequeueRun, RunState, RunWait, State
from django_rmq_retry.parked.database import database
from django_rmq_retry.parked.four_eyes import needs_second
from django_rmq_retry.parked.operators import LABEL, refusal
from django_rmq_retry.topology.drawings import clean
from django_rmq_retry.wording import DAY, HOUR, MINUTE, minute, number

BAR, GAP, HEIGHT, LEAST = 6, 2, 24, 2

register = template.Library()
_FEW = 10 * MINUTE
"""Below this, a span includes its seconds."""
_SHORT = 0.1
"""Below this, a span is in milliseconds."""
_LONG_WORD = 32
"""Longer words between two dots of a name may break anywhere."""
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
_KEPT = {"\n", "\t"}
NOTHING = "\N{EN DASH}"
"""The sign for an unknown value; it never stands for a number."""


def sparkline(counts: Sequence[int], *, title: str, height: int = HEIGHT) -> str:
    """Draw bars from the oldest to the newest; a count above zero always gets a visible bar."""
    width = max(len(counts) * (BAR + GAP) - GAP, 1)
    highest = max(counts, default=0)
    bars = "".join(_bar(place, count, highest, height) for place, count in enumerate(counts))
    return (
        f'<svg class="rmq-spark" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'focusable="false"><title>{clean(title)}</title>{bars}</svg>'
    )


def _bar(place: int, count: int, highest: int, height: int) -> str:
    tall = max(round(height * count / highest), LEAST) if count > 0 else 1
    kind = "bar" if count > 0 else "none"
    left = place * (BAR + GAP)
    return f'<rect class="{kind}" x="{left}" y="{height - tall}" width="{BAR}" height="{tall}"/>'


MIXED = "mixed"
"""The badge of a finished requeue run of which some messages were processed and others failed again."""
ICONS = {
    State.PARKED: "■",
    State.ON_HOLD: "‖",
    State.REQUEUEING: "↻",
    State.REQUEUED: "→",
    State.PROCESSED: "✓",
    State.DISCARDED: "✕",
    RunState.PLANNED: "◔",
    RunState.RUNNING: "●",
    RunState.PAUSED: "‖",
    RunState.WAITING: "…",
    RunState.FINISHED: "✓",
    RunState.STOPPED: "■",
    ItemState.PENDING: "…",
    ItemState.CLAIMED: "↻",
    ItemState.SENT: "→",
    ItemState.FAILED: "✕",
    ItemState.SKIPPED: "↷",
    ItemState.UNCONFIRMED: "?",
    MIXED: "!",
}


class Count(int):
    """A number that a template, and a plural of it, writes with the separators of the language."""

    def __str__(self) -> str:
        return number(int(self))


@register.filter
def rmq_count(number: Any) -> Count | str:
    """Return how many, as people read it: `4,712`; a dash if it is unknown."""
    return Count(number) if isinstance(number, int) else NOTHING


def counted(text: str, **values: Any) -> str:
    """Fill a translated text; its numbers have the separators of the language."""
    return text.replace(")d", ")s") % {
        name: Count(value) if isinstance(value, int) else value for name, value in values.items()
    }


@register.filter("rmq_name")
def name(text: object) -> SafeString:
    """Return a name that stays whole; a long one wraps after a dot, and elsewhere only if a word of it is too long."""
    shown = visible(text)
    if len(shown) <= _LONG_WORD:
        return format_html('<span class="rmq-name rmq-whole">{}</span>', shown)
    words = shown.split(".")
    kind = "rmq-break" if max(map(len, words)) > _LONG_WORD else "rmq-name"
    return format_html('<span class="{}">{}</span>', kind, format_html_join(mark_safe(".<wbr>"), "{}", zip(words)))


@register.filter
def rmq_span(seconds: float | None) -> str:
    """Return a time span: `3 ms`, `30.5 s`, `1 min 41 s`, `19 min`, `3 h 12 min`, `4 days`."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < MINUTE:
        return _seconds(seconds)
    if whole < _FEW and whole % MINUTE:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": whole // MINUTE, "seconds": whole % MINUTE}
    if whole < HOUR:
        return _("%(count)d min") % {"count": whole // MINUTE}
    if whole < DAY:
        return _("%(hours)d h %(minutes)d min") % {"hours": whole // HOUR, "minutes": whole % HOUR // MINUTE}
    return ngettext("%(count)d day", "%(count)d days", whole // DAY) % {"count": whole // DAY}


def _seconds(seconds: float) -> str:
    if 0 < seconds < _SHORT:
        return _("%(count)s ms") % {"count": max(round(seconds * 1000), 1)}
    shown = f"{seconds:.0f}" if float(seconds).is_integer() else f"{seconds:.1f}"
    return _("%(count)s s") % {"count": shown}


@register.filter
def rmq_ago(at: datetime | None) -> SafeString | str:
    """Return the time passed since then by the database's clock, with the exact time in its title."""
    if at is None:
        return NOTHING
    passed = (database_clock.reckoned(database()) - at).total_seconds()
    seconds = int(abs(passed))
    if MINUTE <= seconds < HOUR:
        # An age needs no seconds.
        seconds -= seconds % MINUTE
    if seconds < DAY:
        text = _("%(span)s ago") if passed >= 0 else _("in %(span)s")
        return _time(at, text % {"span": rmq_span(seconds)})
    days = seconds // DAY
    # These texts are separate because in some languages "a day ago" and "for a day" use different forms.
    text = (
        ngettext("%(count)d day ago", "%(count)d days ago", days)
        if passed >= 0
        else ngettext("in %(count)d day", "in %(count)d days", days)
    )
    return _time(at, text % {"count": days})


@register.filter
def rmq_clock(at: datetime | None) -> SafeString | str:
    """Return the time to the second, in the current time zone."""
    return NOTHING if at is None else _time(at, f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}")


@register.filter
def rmq_minute(at: datetime | None) -> SafeString | str:
    """Return hour and minute, with the exact time in its title."""
    return NOTHING if at is None else _time(at, minute(at))


@register.simple_tag
def rmq_spark(counts: Sequence[int], title: str, height: int = 24) -> SafeString:
    """Draw small bars, with a sentence for users of a screen reader."""
    return mark_safe(sparkline(counts, title=title, height=height))  # noqa: S308 - it escapes its title


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
def rmq_second_person(act: str, count: int) -> SafeString | str:
    """Return the note that a button only asks for an act on so many messages; empty if it acts."""
    if not needs_second(GatedAct(act), count):
        return ""
    text = _("A second person has to approve this. The button asks for it, and does nothing yet.")
    if act == GatedAct.CLOSE_BREAKER:
        text = _("A second person has to approve that a breaker is closed. The button asks for it.")
    return format_html('<p class="rmq-note rmq-info">{}</p>', text)


@register.filter("rmq_badge")
def badge(state: str, text: Any = None) -> SafeString:
    """Return the state of a message, of a requeue run or of an item as a sign and a word; colour only repeats them."""
    value: Any = next((kind(state) for kind in (State, RunState, ItemState) if state in kind.values), state)
    return format_html(
        '<span class="rmq-badge rmq-is-{}"><span class="rmq-icon" aria-hidden="true">{}</span> {}</span>',
        str(value).replace("_", "-"),
        ICONS.get(value, ""),
        text or getattr(value, "label", state),
    )


@register.filter("rmq_run")
def run_badge(run: RequeueRun, *, unreachable: bool = False) -> SafeString:
    """Return the badge for the state or outcome of a requeue run."""
    return badge(*run_outcome(run, unreachable=unreachable))


def run_outcome(run: RequeueRun, *, unreachable: bool = False) -> tuple[str, str]:
    """Return the badge's name and text: a finished requeue run shows its outcomes, a sending one needs a broker."""
    if run.state == RunState.RUNNING:
        return _sending(run, unreachable=unreachable)
    if run.state != RunState.FINISHED:
        return run.state, run.get_state_display()
    if run.failed:
        values = {"processed": run.processed, "sent": run.sent, "failed": run.failed}
        text = _("%(failed)d of %(sent)d failed again")
        if run.processed:
            text = _("%(processed)d of %(sent)d processed, %(failed)d failed again")
        return MIXED if run.processed else ItemState.FAILED, counted(text, **values)
    silent = run.sent - run.processed
    if run.unconfirmed:
        text = ngettext("%(count)d not confirmed", "%(count)d not confirmed", run.unconfirmed)
        return ItemState.UNCONFIRMED, counted(text, count=run.unconfirmed)
    if run.sent and silent > 0:
        text = ngettext("%(count)d without an outcome", "%(count)d without an outcome", silent)
        return RunState.WAITING, counted(text, count=silent)
    return (run.state, run.get_state_display()) if run.sent else (ItemState.SKIPPED, _("Nothing was sent"))


def _sending(run: RequeueRun, *, unreachable: bool) -> tuple[str, str]:
    if not unreachable and run.is_silent(database_clock.reckoned(database())):
        return RunState.PAUSED, _("Standing still")
    if unreachable or run.wait == RunWait.BROKER_AWAY:
        return RunState.PLANNED, _("Waiting for the broker")
    return run.state, run.get_state_display()


@register.filter("rmq_visible")
def visible(value: object) -> str:
    """Replace control characters by pictures, direction marks and lone surrogates by their numbers."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in _KEPT else _shown(char) for char in text)


def _shown(char: str) -> str:
    if ord(char) in _PICTURES:
        return _PICTURES[ord(char)]
    hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"\\u{ord(char):04x}" if hidden else char


def _time(at: datetime, text: str) -> SafeString:
    whole = at.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        whole.isoformat(timespec="milliseconds"),
        f"{whole:%Y-%m-%d %H:%M:%S}.{whole.microsecond // 1000:03d} UTC",
        text,
    )


@register.inclusion_tag("admin/rmq_retry/parts/card.html", takes_context=True)
def rmq_card(context: Context, most: int = 5) -> dict[str, Any]:
    """Return what the live status says, for the head of an index: of the app, or of the site."""
    request = context["request"]
    pages = _live_status(request)
    if pages is None or refusal(request.user, "view_status"):
        return {}
    with suppress(DatabaseError):
        summary = pages.summary(request)
        needs = summary["needs"]
        return {**summary, "needs": needs[:most], "more": max(0, len(needs) - most)}
    return {}


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
