"""Links into other systems: addresses with places, in braces, for the values of a message."""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

PLACE = re.compile(r"\{([^{}]*)\}")
TRACE_ID = "trace_id"
OF_MESSAGES = (
    *("key", "key2", "key3", "message_id", "correlation_id", TRACE_ID, "handler", "queue", "type", "error"),
    *("group", "ticket", "from", "to", "from_ms", "to_ms"),
)
"""The places for values of a message, or of an error group."""
OF_FINDINGS = ("code", "subject")
"""The places for values of what is wrong."""


class WrongTemplate(ValueError):
    """The address cannot be used; the text completes the sentence "… takes"."""


@dataclass(frozen=True, slots=True)
class LinkTemplate:
    """An absolute address of the web in which values, percent-encoded, take the places of their names."""

    text: str

    @classmethod
    def parse(cls, text: str, places: Collection[str]) -> "LinkTemplate":
        """Return the template, or raise WrongTemplate if no link could come of it."""
        if not is_http(text) or not text.isprintable() or " " in text:
            raise WrongTemplate(f"an http:// or https:// URL such as {_example(places)!r}, not {text!r}.")
        for name in PLACE.findall(text):
            if name not in places:
                near = difflib.get_close_matches(name, places, n=1)
                known = ", ".join(f"{{{one}}}" for one in places)
                advice = f"Did you mean {{{near[0]}}}?" if near else f"It may have {known}."
                raise WrongTemplate(f"a URL without the place {{{name}}}. {advice}")
        if re.search(r"[{}]", PLACE.sub("", text)):
            raise WrongTemplate(f"a URL with its braces in pairs, not {text!r}. Any others are %7B and %7D.")
        if PLACE.search(urlsplit(text).netloc):
            raise WrongTemplate(f"a URL with a fixed host, not {text!r}.")
        return cls(text)

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the address; empty if a value is missing, or would lead to another folder."""
        names = PLACE.findall(self.text)
        if any(not values.get(name, "").strip(".") for name in names):
            return ""
        return PLACE.sub(lambda found: quote(values[found[1]], safe="", errors="replace"), self.text)


def is_http(address: str) -> bool:
    """Return True for an http:// or https:// URL with a host, and with a port that can be one."""
    try:
        parts = urlsplit(address)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _example(places: Collection[str]) -> str:
    return f"https://bank.example/{{{next(iter(places))}}}"
