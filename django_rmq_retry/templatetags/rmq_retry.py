"""Times, spans, badges and small bars, the same on every page. Everything that comes from outside is escaped."""

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django import template
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.core.drawing.sparkline import sparkline
from django_rmq_retry.models import ItemState, RunState, State

register = template.Library()

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
}
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
_KEPT = {"\n", "\t"}
NOTHING = "\N{EN DASH}"
"""What is not known; never a number."""


@register.filter
def rmq_span(seconds: float | None) -> str:
    """How long: `30.0 s`, `9 min`, `3 h 12 min`, `4 days`."""
    if seconds is None:
        return NOTHING
    whole = int(seconds)
    if seconds < _MINUTE:
        shown = f"{seconds:.0f}" if float(seconds).is_integer() else f"{seconds:.1f}"
        return _("%(count)s s") % {"count": shown}
    if whole < _HOUR:
        return _("%(count)d min") % {"count": whole // _MINUTE}
    if whole < _DAY:
        return _("%(hours)d h %(minutes)d min") % {"hours": whole // _HOUR, "minutes": whole % _HOUR // _MINUTE}
    return ngettext("%(count)d day", "%(count)d days", whole // _DAY) % {"count": whole // _DAY}


@register.filter
def rmq_ago(at: datetime | None) -> SafeString | str:
    """How long ago, with the moment itself for whoever wants to know."""
    if at is None:
        return NOTHING
    passed = (timezone.now() - at).total_seconds()
    seconds = int(abs(passed))
    if seconds < _DAY:
        said = _("%(span)s ago") if passed >= 0 else _("in %(span)s")
        return _time(at, said % {"span": rmq_span(seconds)})
    days = seconds // _DAY
    # Their own texts: in some languages a day ago is another form of the word than a day that lasts.
    said = (
        ngettext("%(count)d day ago", "%(count)d days ago", days)
        if passed >= 0
        else ngettext("in %(count)d day", "in %(count)d days", days)
    )
    return _time(at, said % {"count": days})


@register.filter
def rmq_clock(at: datetime | None) -> SafeString | str:
    """The moment to the second, in the current time zone."""
    return NOTHING if at is None else _time(at, f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}")


@register.filter
def rmq_minute(at: datetime | None) -> SafeString | str:
    """The hour and minute; with its day where that is not today."""
    if at is None:
        return NOTHING
    local = timezone.localtime(at)
    return _time(at, f"{local:%H:%M}" if local.date() == timezone.localdate() else f"{local:%Y-%m-%d %H:%M}")


@register.filter
def rmq_badge(state: str) -> SafeString:
    """What became of it, as sign and word; colour only repeats them."""
    return badge(state)


@register.filter
def rmq_visible(text: object) -> str:
    """A text with signs for what nobody would see, or what would turn the letters around."""
    return visible(str(text))


@register.simple_tag
def rmq_spark(counts: Sequence[int], title: str, height: int = 24) -> SafeString:
    """Small bars with a sentence for those who do not see them."""
    return mark_safe(sparkline(counts, title=title, height=height))  # noqa: S308 - it escapes its title


@register.simple_tag(takes_context=True)
def rmq_nonce(context: Context) -> SafeString:
    """The nonce of a strict policy, of Django's own middleware or of django-csp; nothing where there is none."""
    nonce = context.get("csp_nonce")
    if nonce is None:
        nonce = getattr(context.get("request"), "csp_nonce", "")
    # Django makes its own when it is written for the first time; before that it counts as none.
    return format_html(' nonce="{}"', nonce) if str(nonce) else SafeString("")


def badge(state: str, said: Any = None) -> SafeString:
    """The badge of a state of a message, of a run or of one of its items."""
    value: Any = next((kind(state) for kind in (State, RunState, ItemState) if state in kind.values), state)
    return format_html(
        '<span class="rmq-badge rmq-is-{}"><span class="rmq-icon" aria-hidden="true">{}</span> {}</span>',
        str(value).replace("_", "-"),
        ICONS.get(value, ""),
        said or getattr(value, "label", state),
    )


def visible(text: str) -> str:
    """Control characters as pictures, marks of direction and lone surrogates as their numbers."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in _KEPT else _shown(char) for char in text)


def _shown(char: str) -> str:
    if ord(char) in _PICTURES:
        return _PICTURES[ord(char)]
    hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"\\u{ord(char):04x}" if hidden else char


def _time(at: datetime, said: str) -> SafeString:
    whole = at.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        whole.isoformat(timespec="milliseconds"),
        f"{whole:%Y-%m-%d %H:%M:%S}.{whole.microsecond // 1000:03d} UTC",
        said,
    )
