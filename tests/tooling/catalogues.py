"""Catalogues of translations: the entries of polib, as one text with one or several forms."""

from collections.abc import Iterable
from gettext import c2py
from pathlib import Path
from typing import Any

import polib

Key = tuple[str | None, str, str | None]
"""A context, a text and its plural."""


def read(path: Path) -> list[polib.POEntry]:
    """Return the entries of a .po or .mo file, without those in comments."""
    found: Iterable[Any] = polib.pofile(str(path)) if path.suffix == ".po" else polib.mofile(str(path))
    return [entry for entry in found if not entry.obsolete]


def key(entry: polib.POEntry) -> Key:
    return entry.msgctxt, entry.msgid, entry.msgid_plural or None


def said(entry: polib.POEntry) -> list[str]:
    """Return the translation, or one for each plural form."""
    return [entry.msgstr_plural[form] for form in sorted(entry.msgstr_plural)] or [entry.msgstr]


def plural_forms(path: Path) -> tuple[int, list[int]]:
    """Return the number of plural forms, and the form of each count below 2,000."""
    number, rule = polib.pofile(str(path)).metadata["Plural-Forms"].rstrip("; \n").split(";")
    form = c2py(rule.partition("plural=")[2])
    return int(number.partition("=")[2]), [int(form(count)) for count in range(2_000)]
