"""The catalogues of translations: whole, well-formed, compiled. None of this needs GNU gettext."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import polib
import pytest
from django.utils import translation
from django.utils.translation import gettext, ngettext

import django_rmq_retry
from tests.tooling.catalogues import key, plural_forms, read, said
from tests.tooling.extracting import in_f_strings, in_python, in_template, marked
from tests.tooling.messages import LANGUAGES

PACKAGE = Path(django_rmq_retry.__file__).parent
PLACE = re.compile(r"%\((\w+)\)([a-z])|%%|\{(\w*)\}")
TAG = re.compile(r"</?[a-z][^>]*>")
SHARED = {
    "Action",
    "All",
    "Breadcrumbs",
    "Change",
    "Clear selection",
    "Close",
    "Django site admin",
    "Filter",
    "Home",
    "Messages",
    "Search",
    "content type",
    "group",
    "version",
}
"""Said by Django too, and meant as there: whichever of the two is found first, nobody sees a difference."""
ALIKE = {
    "%(hours)d h %(minutes)d min",
    "%(minutes)d min %(seconds)d s",
    '<span class="rmq-place">%(file)s:%(line)s</span> in <code>%(function)s</code>',
}
"""Longer texts that some language says in the same words."""


def catalogue(language: str) -> list[polib.POEntry]:
    return read(path(language))


def path(language: str) -> Path:
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po"


def texts(language: str) -> Iterator[tuple[polib.POEntry, int, str]]:
    """Each form of each translation."""
    for entry in catalogue(language):
        for form, text in enumerate(said(entry)):
            yield entry, form, text


def places(text: str) -> list[str]:
    return sorted(found[0] for found in PLACE.finditer(text))


def test_each_language_has_a_catalogue() -> None:
    assert sorted(one.name for one in (PACKAGE / "locale").iterdir()) == sorted(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_holds_exactly_the_texts_of_the_sources(language: str) -> None:
    there, here = {*map(key, catalogue(language))}, set(marked(PACKAGE))

    assert here - there == set(), "make messages, then translate"
    assert there - here == set(), "make messages"


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_untranslated_fuzzy_or_doubled(language: str) -> None:
    entries = catalogue(language)

    assert [entry.msgid for entry in entries if entry.fuzzy or not all(one.strip() for one in said(entry))] == []
    assert len({(entry.msgctxt, entry.msgid) for entry in entries}) == len(entries)


@pytest.mark.parametrize("language", LANGUAGES)
def test_plural_texts_have_all_plural_forms_of_their_language(language: str) -> None:
    number, forms = plural_forms(path(language))

    assert {len(said(entry)) for entry in catalogue(language) if entry.msgid_plural} == {number}
    assert {len(said(entry)) for entry in catalogue(language) if not entry.msgid_plural} == {1}
    assert {*forms} <= {*range(number)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_their_placeholders(language: str) -> None:
    _number, forms = plural_forms(path(language))
    alone = {form for form in forms if [count for count, its in enumerate(forms) if its == form and count] == [1]}
    wrong = []
    for entry, form, text in texts(language):
        # A form that stands for one thing alone may leave the number out, as the text itself does.
        wanted = entry.msgid_plural if entry.msgid_plural and form not in alone else entry.msgid
        if places(text) != places(wanted):
            wrong.append(text)

    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_tags_and_final_punctuation(language: str) -> None:
    """A title that goes on (…), a label before a value (:), a whole sentence (.): the same in every language."""
    ends = {".": ".\N{IDEOGRAPHIC FULL STOP}", "…": "…", ":": ":\N{FULLWIDTH COLON}"}
    wrong = []
    for entry, _form, text in texts(language):
        same = sorted(TAG.findall(text)) == sorted(TAG.findall(entry.msgid))
        end = text.rstrip("»”“\"'")[-1:]
        if not same or text.strip() != text or end not in ends.get(entry.msgid[-1], end):
            wrong.append(text)

    assert wrong == []


def test_a_requeue_run_has_one_name_in_chinese() -> None:
    found = [text for entry, _form, text in texts("zh_Hans") if "requeue run" in entry.msgid.lower()]

    assert found
    assert [text for text in found if "运行" in text or "任务" not in text] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_translation_equals_its_source_text(language: str) -> None:
    alike = {entry.msgid for entry, _form, text in texts(language) if text == entry.msgid}

    assert {text for text in alike if len(TAG.sub("", text).split()) > 2} <= ALIKE


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_equals_its_source(language: str) -> None:
    compiled = read(path(language).with_suffix(".mo"))

    assert {key(one): said(one) for one in compiled} == {key(one): said(one) for one in catalogue(language)}, (
        "make messages"
    )


def test_texts_shared_with_django_are_listed() -> None:
    """Catalogues of all apps are one: a word of ours in another sense would turn up on others' pages."""
    root = Path(django.__file__).parent / "contrib"
    folders = [root / app / "locale" / "en" / "LC_MESSAGES" / "django.po" for app in ("admin", "auth")]
    theirs = {entry.msgid for folder in folders for entry in read(folder) if not entry.msgctxt}
    ours = {text for context, text, _plural in marked(PACKAGE) if context is None}

    assert ours & theirs <= SHARED


@pytest.mark.parametrize(
    ("language", "one", "many", "ago"),
    [
        ("de", "21 Nachrichten verwerfen", "5 Nachrichten verwerfen", "vor 3 Tagen"),
        ("fr", "Abandonner 21 messages", "Abandonner 5 messages", "il y a 3 jours"),
        ("ru", "Отбросить 21 сообщение", "Отбросить 5 сообщений", "3 дня назад"),
        ("uk", "Відкинути 21 повідомлення", "Відкинути 5 повідомлень", "3 дні тому"),
        ("zh-hans", "丢弃 21 条消息", "丢弃 5 条消息", "3 天前"),
    ],
)
def test_django_finds_translations_and_plurals_in_each_language(language: str, one: str, many: str, ago: str) -> None:
    discard = "Discard %(count)d message", "Discard %(count)d messages"
    with translation.override(language):
        found = [ngettext(*discard, count) % {"count": count} for count in (21, 5)]
        day = ngettext("%(count)d day ago", "%(count)d days ago", 3) % {"count": 3}

    assert (*found, day) == (one, many, ago)


def test_english_stays_english_under_another_default_language(settings: Any) -> None:
    settings.LANGUAGE_CODE = "ru"
    with translation.override("en"):
        assert gettext("Requeue runs") == "Requeue runs"


def test_no_text_stands_in_an_f_string_where_makemessages_does_not_find_it() -> None:
    inside = {str(path): list(in_f_strings(path.read_text())) for path in PACKAGE.rglob("*.py")}

    assert {name: lines for name, lines in inside.items() if lines} == {}
    assert list(in_f_strings('title = _("Note")\nshown = f"{one}: {_(\'Note\')}"\n')) == [2]


def test_translatable_texts_are_found_in_modules_and_templates() -> None:
    module = "_('a')\nngettext_lazy('%(n)d b', '%(n)d bs', 'n')\npgettext('c', 'd')\nother('e')\n_(name)\n"
    template = (
        """{% load i18n %}{% translate "It's" %}{% translate "a" context "b" %}{{ x|default:_("c") }}"""
        "{% blocktranslate count counter=n trimmed %}\n {{ counter }} d\n"
        "{% plural %}{{ counter }} ds{% endblocktranslate %}"
    )

    assert list(in_python(module)) == [(None, "a", None), (None, "%(n)d b", "%(n)d bs"), ("c", "d", None)]
    assert set(in_template(template)) == {
        (None, "It's", None),
        ("b", "a", None),
        (None, "c", None),
        (None, "%(counter)s d", "%(counter)s ds"),
    }
