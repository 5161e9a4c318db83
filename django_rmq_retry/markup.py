"""What pages show alike: badges, names, numbers, times and small charts as HTML. All input is escaped.

The template tags register these functions. They stand outside the package of the admin, which registers its pages when
it is imported: Django loads the tags of every app, also in a project without its admin.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from html import escape
from typing import Any

from django.urls import get_resolver, get_script_prefix, get_urlconf, reverse
from django.utils import timezone
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.models import ItemState, RunState, State
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.topology.drawings import clean
from django_rmq_retry.wording import DAY, duration, minute, number, second, span

BAR, GAP, HEIGHT, LEAST = 6, 2, 24, 2
CHART_BAR, CHART_HEIGHT, LABEL_HEIGHT, LABELLED = 28, 60, 18, 3
"""The chart on the page of a group: as wide as its column, with a time below every third bar."""
_LONG_WORD = 32
"""Longer words between two dots of a name may break anywhere."""
_DOT = re.compile(r"(?<!\d)\.|\.(?!\d)")
"""A dot that is not one of a number."""
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
_KEPT = {"\n", "\t"}
NOTHING = "\N{EN DASH}"
"""The sign for an unknown value; it never stands for a number."""


def html(form: str, *parts: object) -> SafeString:
    """Return the same as Django's format_html(), in less than half of its time: a list has a thousand of them."""
    return SafeString(form.format(*map(_escaped, parts)))


def html_joined(between: str, parts: Iterable[object]) -> SafeString:
    """Return the parts with the HTML in between."""
    return SafeString(between.join(map(_escaped, parts)))


def _escaped(part: Any) -> str:
    return escape(part) if type(part) is str else conditional_escape(part)


def address_of(page: str, number: object, current_app: str | None = None) -> str:
    """Return the address of one of our pages that is about one row, such as `parkedmessage_change`."""
    known = _address_around(page, current_app, get_script_prefix(), get_language(), get_resolver(get_urlconf()))
    return str(number).join(known)


@lru_cache(maxsize=100)
def _address_around(page: str, current_app: str | None, *_of_the_request: object) -> tuple[str, str]:
    """Return an address before its number and behind it: Django takes long to find an address, and lists have many."""
    before, _number, behind = reverse(f"admin:rmq_retry_{page}", args=(0,), current_app=current_app).rpartition("/0/")
    return f"{before}/", f"/{behind}"


def sparkline(counts: Sequence[int], *, title: str) -> str:
    """Draw bars from the oldest to the newest; a count above zero always gets a visible bar."""
    return _drawn(counts, title=title, height=HEIGHT, bar=BAR)


def chart(counts: Sequence[int], starts: Sequence[datetime], *, title: str) -> str:
    """Draw the same bars larger, with the times at which every third of them starts below them."""
    times = "".join(
        f'<text x="{place * (CHART_BAR + GAP)}" y="{CHART_HEIGHT + LABEL_HEIGHT - 4}">'
        f"{timezone.localtime(start):%H:%M}</text>"
        for place, start in enumerate(starts)
        if place % LABELLED == 0
    )
    return _drawn(counts, title=title, height=CHART_HEIGHT, bar=CHART_BAR, below=times)


def _drawn(counts: Sequence[int], *, title: str, height: int, bar: int, below: str = "") -> str:
    width = max(len(counts) * (bar + GAP) - GAP, 1)
    whole = height + (LABEL_HEIGHT if below else 0)
    highest = max(counts, default=0)
    bars = "".join(_bar(place, count, highest, height, bar) for place, count in enumerate(counts))
    return (
        f'<svg class="rmq-spark" role="img" width="{width}" height="{whole}" viewBox="0 0 {width} {whole}" '
        f'focusable="false"><title>{clean(title)}</title>{bars}{below}</svg>'
    )


def _bar(place: int, count: int, highest: int, height: int, bar: int) -> str:
    tall = max(round(height * count / highest), LEAST) if count > 0 else 1
    kind = "bar" if count > 0 else "none"
    return f'<rect class="{kind}" x="{place * (bar + GAP)}" y="{height - tall}" width="{bar}" height="{tall}"/>'


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


def count_or_dash(value: Any) -> Count | str:
    """Return how many, as people read it: `4,712`; a dash if it is unknown."""
    return Count(value) if isinstance(value, int) else NOTHING


def name(text: object) -> SafeString:
    """Return a name that stays whole; a long one wraps after a dot, and elsewhere only if a word of it is too long."""
    shown = visible(text)
    if len(shown) <= _LONG_WORD:
        return html('<span class="rmq-name rmq-whole">{}</span>', shown)
    return _at_dots(shown, shown.split("."))


def wrapping(text: object) -> SafeString:
    """Return a line with names in it, which wraps at spaces and after the dots of the names."""
    shown = visible(text)
    return _at_dots(shown, shown.replace(".", " ").split())


def _at_dots(shown: str, words: Sequence[str]) -> SafeString:
    kind = "rmq-break" if max(map(len, words), default=0) > _LONG_WORD else "rmq-name"
    return html('<span class="{}">{}</span>', kind, html_joined(".<wbr>", _DOT.split(shown)))


def time_span(seconds: float | None) -> str:
    """Return how long something takes; a dash if it is unknown."""
    return NOTHING if seconds is None else duration(seconds)


def time_ago(at: datetime | None) -> SafeString | str:
    """Return the time passed since then by the database's clock, with the exact time in its title."""
    if at is None:
        return NOTHING
    passed = (database_clock.reckoned(records_alias()) - at).total_seconds()
    seconds = int(abs(passed))
    if seconds < DAY:
        text = _("%(span)s ago") if passed >= 0 else _("in %(span)s")
        return _time(at, text % {"span": span(timedelta(seconds=seconds))})
    days = seconds // DAY
    # These texts are separate because in some languages "a day ago" and "for a day" use different forms.
    text = (
        ngettext("%(count)d day ago", "%(count)d days ago", days)
        if passed >= 0
        else ngettext("in %(count)d day", "in %(count)d days", days)
    )
    return _time(at, text % {"count": days})


def time_exact(at: datetime | None) -> SafeString | str:
    """Return the time to the second, in the current time zone."""
    return NOTHING if at is None else _time(at, f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}")


def time_minute(at: datetime | None) -> SafeString | str:
    """Return hour and minute, with the exact time in its title."""
    return NOTHING if at is None else _time(at, minute(at))


def time_second(at: datetime | None) -> SafeString | str:
    """Return the time of day to the second, with the date in its title."""
    return NOTHING if at is None else _time(at, second(at))


def time_short(at: datetime | None) -> SafeString | str:
    """Return hour and minute of today, or month and day, with the exact time in its title."""
    if at is None:
        return NOTHING
    local = timezone.localtime(at)
    today = local.date() == timezone.localtime(database_clock.reckoned(records_alias())).date()
    return _time(at, f"{local:%H:%M}" if today else f"{local:%m-%d}")


_STATES: dict[str, Any] = {str(state): state for kind in (ItemState, RunState, State) for state in kind}


def badge(state: str, text: Any = None) -> SafeString:
    """Return the state of a message, of a requeue run or of an item as a sign and a word; colour only repeats them."""
    value = _STATES.get(state, state)
    return html(
        '<span class="rmq-badge rmq-is-{}"><span class="rmq-icon" aria-hidden="true">{}</span> {}</span>',
        str(value).replace("_", "-"),
        ICONS.get(value, ""),
        text or getattr(value, "label", state),
    )


def state_badge(state: str, doubt: object) -> SafeString:
    """Return the state of a message; what was perhaps done twice has no tick."""
    return badge(MIXED, State.PROCESSED.label) if doubt and state == State.PROCESSED else badge(state)


def visible(value: object, most: int = 0) -> str:
    """Replace control characters by pictures, direction marks and lone surrogates by their numbers.

    A text of more characters than are named is cut.
    """
    text = str(value)
    if not text.isprintable():
        text = "".join(char if char in _KEPT else _shown(char) for char in text)
    return f"{text[: most - 1]}…" if 0 < most < len(text) else text


def _shown(char: str) -> str:
    if ord(char) in _PICTURES:
        return _PICTURES[ord(char)]
    hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return f"\\u{ord(char):04x}" if hidden else char


def _time(at: datetime, text: str) -> SafeString:
    whole = at.astimezone(UTC).isoformat(timespec="milliseconds")
    title = f"{whole[:10]} {whole[11:23]} UTC"
    return html('<time datetime="{}" title="{}">{}</time>', whole, title, text)
