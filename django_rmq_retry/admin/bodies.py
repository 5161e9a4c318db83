"""A body to be looked at: its text as it is, its text indented, its bytes; without what the reader may not see."""

from collections.abc import Collection
from dataclasses import dataclass

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_rmq_retry.admin import allowing
from django_rmq_retry.conf import settings
from django_rmq_retry.core.indenting import indented
from django_rmq_retry.core.masking import decoded, is_json, masked
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.templatetags.rmq_retry import visible

TEXT_LIMIT = 64 * 1024
HEX_LIMIT = 4 * 1024
MASK_LIMIT = 1024 * 1024
"""Hiding fields reads the whole text: a longer one is not shown to whoever may not see all of it."""
_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a page shows of a body."""

    formatted: str = ""
    exact: str = ""
    hex: str = ""
    hidden: tuple[str, ...] = ()
    """Places whose values are not shown."""
    cut: bool = False
    why: str = ""
    """Why nothing is shown, or not as text."""


def whole_of(request: HttpRequest, message: ParkedMessage) -> bool:
    """Whether every byte may be seen."""
    return not allowing.refusal(request, "view_payload", message)


def look(data: bytes, content_type: str, *, whole: bool, shown: Collection[str] = ()) -> Body:
    """What somebody sees of a body who may see the whole, or else all but the hidden fields."""
    if whole:
        return _open(data, content_type)
    if len(data) > MASK_LIMIT:
        return Body(why=_("The body is too large to hide its confidential fields, so it is not shown."))
    text, hidden = masked(data, content_type, settings().mask, shown=shown)
    if text is None:
        return Body(why=_("The body is no JSON, so its confidential fields cannot be told apart: it is not shown."))
    return _shown(text, hidden=tuple(place for place in hidden if place not in shown))


def dump(data: bytes) -> str:
    """Bytes as numbers, with the letters among them."""
    lines = []
    for start in range(0, min(len(data), HEX_LIMIT), _WIDTH):
        part = data[start : start + _WIDTH]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)  # noqa: PLR2004 - ASCII
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _WIDTH}} {letters}")
    return "\n".join(lines)


def _open(data: bytes, content_type: str) -> Body:
    text = decoded(data, content_type)
    if text is None:
        why = _("The body is no text in its encoding: here are its bytes.")
        return Body(hex=dump(data), cut=len(data) > HEX_LIMIT, why=why)
    seen = _shown(text)
    return Body(formatted=seen.formatted, exact=seen.exact, hex=dump(data), cut=seen.cut)


def _shown(text: str, *, hidden: tuple[str, ...] = ()) -> Body:
    cut = len(text) > TEXT_LIMIT
    formatted = "" if cut or not is_json(text) else visible(indented(text))
    return Body(formatted=formatted, exact=visible(text[:TEXT_LIMIT]), hidden=hidden, cut=cut)
