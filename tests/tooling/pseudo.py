"""A pseudo-language: each translated text is in brackets, which makes untranslated ones visible."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import django
import polib
from django.utils import translation

import django_rmq_retry
from tests.tooling.catalogues import key, read
from tests.tooling.extracting import marked

LANGUAGE = "qps"
OPEN, CLOSE = "[!! ", " !!]"
INSIDE = re.compile(r"\[!! .*? !!\]", re.DOTALL)
OURS = Path(django_rmq_retry.__file__).parent
DJANGOS = ("conf", "contrib/admin", "contrib/auth", "contrib/contenttypes")


@contextmanager
def spoken(settings: Any, folder: Path) -> Iterator[None]:
    """Activate the language, in Django's admin too. `settings` is the fixture, because it resets Django's caches."""
    place = folder / LANGUAGE / "LC_MESSAGES"
    place.mkdir(parents=True)
    (place / "django.mo").write_bytes(_compiled())
    settings.LOCALE_PATHS = [str(folder)]
    with translation.override(LANGUAGE):
        yield


def unmarked(text: str) -> str:
    """Return the parts of a text outside all brackets, which may be nested."""
    while INSIDE.search(text):
        text = re.sub(r"\[!! (?:(?!\[!! ).)*? !!\]", " ", text, flags=re.DOTALL)
    return text


@cache
def _compiled() -> bytes:
    texts = dict.fromkeys(marked(OURS))
    root = Path(django.__file__).parent
    for name in DJANGOS:
        texts |= dict.fromkeys(map(key, read(root / name / "locale" / "en" / "LC_MESSAGES" / "django.po")))
    # A text may have a plural in one place and none in another: the entry with the plural serves both.
    plain = {(context, text): plural for context, text, plural in sorted(texts, key=lambda one: one[2] is not None)}
    catalogue = polib.POFile()
    catalogue.metadata = {
        "Content-Type": "text/plain; charset=UTF-8",
        "Plural-Forms": "nplurals=2; plural=(n != 1);",
    }
    for (context, text), plural in plain.items():
        one, other = OPEN + text + CLOSE, OPEN + (plural or "") + CLOSE
        forms = {"msgid_plural": plural, "msgstr_plural": {0: one, 1: other}} if plural else {"msgstr": one}
        catalogue.append(polib.POEntry(msgid=text, msgctxt=context, **forms))
    return bytes(catalogue.to_binary())
