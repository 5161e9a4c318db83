"""Reads pages as people do: their forms, their buttons, their words."""

import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_rmq_retry.models import ParkedMessage

EVIL = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)>\u202e"
DJANGOS = ("django_session", "auth_user", "auth_permission", "auth_group", "SAVEPOINT", "django_admin_log")


@dataclass
class Form:
    """A form with what stands in it."""

    action: str
    method: str
    values: dict[str, Any] = field(default_factory=dict)
    buttons: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value and words of each that can be pressed."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """The addresses of buttons that lead elsewhere than the form, by their words."""


class Page(HTMLParser):
    """The texts and controls of a page."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._form: Form | None = None
        self._open: tuple[str, dict[str, str], list[str]] | None = None
        # A name that the browser may wrap is one word all the same.
        self.feed(response.content.decode().replace("<wbr>", ""))

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def form_with(self, words: str) -> tuple[Form, dict[str, Any]]:
        """The form whose button says so, with everything that pressing it sends."""
        for form in self.forms:
            for name, value, said in form.buttons:
                if said.startswith(words):
                    values = {**form.values, **({name: value} if name else {})}
                    return replace(form, action=form.elsewhere.get(said, form.action)), values
        raise AssertionError(f"no button says {words!r}: {[one.buttons for one in self.forms]}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag == "form":
            assert self._form is None, "a form within a form ends both"
            self._form = Form(action=given.get("action", ""), method=given.get("method", "get"))
            self.forms.append(self._form)
        elif self._form is not None and tag in ("input", "select", "textarea"):
            self._fill(tag, given)
        if tag == "option" and "selected" in given and self._form is not None:
            self._form.values[self._select] = given.get("value", "")
        if tag in ("a", "button", "textarea"):
            self._open = tag, given, []

    def _fill(self, tag: str, given: dict[str, str]) -> None:
        assert self._form is not None
        name = given.get("name", "")
        self._select = name
        ticked = given.get("type") not in ("checkbox", "radio") or "checked" in given
        if name and ticked and "disabled" not in given and given.get("type") != "submit":
            known = self._form.values.get(name) if given.get("type") == "checkbox" else None
            others = known if isinstance(known, list) else [known] if known is not None else []
            self._form.values[name] = [*others, given.get("value", "")] if others else given.get("value", "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open is not None:
            self._open[2].append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        if self._open is None or tag != self._open[0]:
            return
        _tag, given, words = self._open
        said = " ".join("".join(words).split())
        if tag == "a":
            self.links.setdefault(said, given.get("href", ""))
        elif tag == "textarea" and self._form is not None:
            self._form.values[given.get("name", "")] = "".join(words).removeprefix("\n")
        elif tag == "button" and self._form is not None and "disabled" not in given:
            self._form.buttons.append((given.get("name", ""), given.get("value", ""), said))
            if "formaction" in given:
                self._form.elsewhere[said] = given["formaction"]
        self._open = None


def press(client: Client, response: Any, words: str, **typed: str | list[str]) -> Any:
    """Press the button that says so, with something typed before; the page that follows."""
    form, values = Page(response).form_with(words)
    address = form.action or response.request["PATH_INFO"] + "?" + response.request.get("QUERY_STRING", "")
    return getattr(client, form.method.lower())(address, {**values, **typed}, follow=True)


def own_queries(queries: CaptureQueriesContext) -> list[str]:
    """Without those by which Django finds out who asks."""
    return [one["sql"] for one in queries if not any(name in one["sql"] for name in DJANGOS)]


def address_of(message: ParkedMessage, what: str = "change") -> str:
    return f"/admin/rmq_retry/parkedmessage/{message.pk}/{what}/"


def scripts_in(response: Any) -> list[str]:
    """Everything that a browser would run: inline scripts, on… attributes, javascript: addresses, inline styles."""
    found = []
    for tag, attrs in Page(response).tags:
        found += [f"{tag} {name}" for name in attrs if name.startswith("on") or name == "style"]
        found += [f"{tag} javascript:" for value in attrs.values() if value.strip().lower().startswith("javascript:")]
        if tag == "style" or (tag == "script" and not attrs.get("src")):
            found.append(tag)
        if tag == "img" and attrs.get("src") == "x":
            found.append("img x")
    return found


def follow(client: Client, response: Any, words: str) -> Any:
    """Follow the link whose words begin so."""
    link = next(address for said, address in Page(response).links.items() if said.startswith(words))
    return client.get(link, follow=True)


def main_of(response: Any) -> list[str]:
    """What the main buttons of a page say."""
    return re.findall(r'class="rmq-button rmq-main"[^>]*>([^<]+)<', response.content.decode())
