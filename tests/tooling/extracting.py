"""Finds texts marked for translation, in Python and in templates, without GNU gettext."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from django.utils.translation.template import templatize

Text = tuple[str | None, str, str | None]
"""A context, a text and its plural."""
KINDS = {"_": "t", "gettext": "t", "ngettext": "tp", "pgettext": "ct", "npgettext": "ctp"}
"""The arguments of each function: context, text, plural."""
STRING = r"""u?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
CALL = re.compile(rf"\b(gettext|ngettext|pgettext|npgettext|_)\(\s*({STRING}(?:\s*,\s*{STRING})*)")


@cache
def marked(package: Path) -> dict[Text, set[str]]:
    """Return each text with its files."""
    found: dict[Text, set[str]] = {}
    for path in sorted(package.rglob("*.py")) + sorted(package.rglob("*.html")):
        source = path.read_text(encoding="utf-8")
        for text in in_python(source) if path.suffix == ".py" else in_template(source):
            found.setdefault(text, set()).add(str(path.relative_to(package)))
    return found


def in_python(source: str) -> Iterator[Text]:
    """Yield the texts of a module."""
    for node in ast.walk(ast.parse(source)):
        yield from _called(node)


def _called(node: ast.AST) -> Iterator[Text]:
    """Yield the text that a call marks."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id.removesuffix("_lazy").removesuffix("_noop")
        given = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        texts = [value for value in given if isinstance(value, str)]
        if name in KINDS and len(texts) >= len(KINDS[name]):
            yield _text(KINDS[name], texts)


def in_f_strings(source: str) -> Iterator[int]:
    """Yield the lines of texts within an f-string, where GNU gettext does not look."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield from (node.lineno for inner in ast.walk(node) for _text in _called(inner))


def in_template(source: str) -> Iterator[Text]:
    """Yield the texts of a template, as Django passes them to xgettext."""
    for name, arguments in CALL.findall(templatize(source)):
        texts = [ast.literal_eval(one) for one in re.findall(STRING, arguments)]
        yield _text(KINDS[name], texts)


def _text(kinds: str, texts: list[str]) -> Text:
    known = dict(zip(kinds, texts, strict=False))
    return known.get("c"), known["t"], known.get("p")
