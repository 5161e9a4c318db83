"""The catalogues of translations: whole, well-formed, compiled. None of this needs GNU gettext."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.utils import translation
from django.utils.translation import gettext, ngettext

import django_rmq_retry
from tests.tooling.catalogues import Catalogue, Entry, compiled, expected, read, told
from tests.tooling.extracting import in_python, in_template, marked
from tests.tooling.messages import LANGUAGES

PACKAGE = Path(django_rmq_retry.__file__).parent
PLACE = re.compile(r"%\((\w+)\)([a-z])|%%|\{(\w*)\}")
TAG = re.compile(r"</?[a-z][^>]*>")
COUNTS = range(1, 200)
SHARED = {
    "Action",
    "All",
    "Close",
    "Django site admin",
    "Home",
    "Messages",
    "Search",
    "content type",
    "group",
    "version",
}
"""Said by Django too, and meant as there: whichever of the two is found first, nobody sees a difference."""
ALIKE = {
    "%(attempts)d (cycle %(cycle)d)",
    "%(hours)d h %(minutes)d min",
    "%(minutes)d min %(seconds)d s",
    '<span class="rmq-place">%(file)s:%(line)s</span> in <code>%(function)s</code>',
}
"""Longer texts that some language says in the same words."""


def catalogue(language: str) -> Catalogue:
    return read(path(language))


def path(language: str) -> Path:
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po"


def texts(language: str) -> Iterator[tuple[Entry, int, str]]:
    """Each form of each translation."""
    for entry in catalogue(language).entries:
        for form, said in enumerate(entry.said):
            yield entry, form, said


def places(text: str) -> list[str]:
    return sorted(found[0] for found in PLACE.finditer(text))


def test_each_language_has_a_catalogue() -> None:
    assert sorted(one.name for one in (PACKAGE / "locale").iterdir()) == sorted(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_holds_exactly_the_texts_of_the_sources(language: str) -> None:
    there, here = {entry.key for entry in catalogue(language).entries}, set(marked(PACKAGE))

    assert here - there == set(), "make messages, then translate"
    assert there - here == set(), "make messages"


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_untranslated_fuzzy_or_doubled(language: str) -> None:
    entries = catalogue(language).entries

    assert [entry.text for entry in entries if entry.fuzzy or not all(one.strip() for one in entry.said)] == []
    assert len({(entry.context, entry.text) for entry in entries}) == len(entries)


@pytest.mark.parametrize("language", LANGUAGES)
def test_plural_texts_have_all_plural_forms_of_their_language(language: str) -> None:
    there = catalogue(language)
    counted = [entry for entry in there.entries if entry.plural is not None]

    assert {len(entry.said) for entry in counted} == {there.forms}
    assert {len(entry.said) for entry in there.entries if entry.plural is None} == {1}
    assert {there.form(count) for count in range(2_000)} <= set(range(there.forms))


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_their_placeholders(language: str) -> None:
    there = catalogue(language)
    alone = {form for form in range(there.forms) if {count for count in COUNTS if there.form(count) == form} == {1}}
    wrong = []
    for entry, form, said in texts(language):
        # A form that stands for one thing alone may leave the number out, as the text itself does.
        wanted = entry.text if entry.plural is None or form in alone else entry.plural
        if places(said) != places(wanted):
            wrong.append(said)

    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_tags_and_final_punctuation(language: str) -> None:
    """A title that goes on (…), a label before a value (:), a whole sentence (.): the same in every language."""
    ends = {".": ".\N{IDEOGRAPHIC FULL STOP}", "…": "…", ":": ":\N{FULLWIDTH COLON}"}
    wrong = []
    for entry, _form, said in texts(language):
        same = sorted(TAG.findall(said)) == sorted(TAG.findall(entry.text))
        end = said.rstrip("»”“\"'")[-1:]
        if not same or said.strip() != said or end not in ends.get(entry.text[-1], end):
            wrong.append(said)

    assert wrong == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_translation_equals_its_source_text(language: str) -> None:
    alike = {entry.text for entry, _form, said in texts(language) if said == entry.text}

    assert {text for text in alike if len(TAG.sub("", text).split()) > 2} <= ALIKE


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_equals_its_source(language: str) -> None:
    assert told(path(language).with_suffix(".mo")) == expected(catalogue(language)), "make messages"


def test_texts_shared_with_django_are_listed() -> None:
    """Catalogues of all apps are one: a word of ours in another sense would turn up on others' pages."""
    root = Path(django.__file__).parent / "contrib"
    folders = [root / app / "locale" / "en" / "LC_MESSAGES" / "django.po" for app in ("admin", "auth")]
    theirs = {entry.text for folder in folders for entry in read(folder).entries if entry.context is None}
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


def test_a_catalogue_is_read_and_compiled(tmp_path: Path) -> None:
    source, target = tmp_path / "django.po", tmp_path / "django.mo"
    source.write_text(
        '# a note\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
        '"Plural-Forms: nplurals=2; plural=(n > 1);\\n"\n\n#, fuzzy\nmsgctxt "c"\nmsgid "a \\"b\\""\nmsgstr "ä"\n\n'
        'msgid "one"\nmsgid_plural "many"\nmsgstr[0] ""\n"eins"\nmsgstr[1] "viele"\n\n'
        '#~ msgid "gone"\n#~ msgstr "weg"\n'
    )
    there = read(source)
    target.write_bytes(compiled(there))

    assert there.entries == (
        Entry(context="c", text='a "b"', said=("ä",), fuzzy=True),
        Entry(text="one", plural="many", said=("eins", "viele")),
    )
    assert told(target) == {'c\x04a "b"': "ä", "one[0]": "eins", "one[1]": "viele"}
    assert (there.forms, there.form(0), there.form(2)) == (2, 0, 1)
