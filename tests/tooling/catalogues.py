"""Reads and writes catalogues of translations (.po, .mo) without GNU gettext."""

import ast
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from gettext import GNUTranslations, c2py
from pathlib import Path

KEYWORD = re.compile(r'(?:(msgctxt|msgid|msgid_plural|msgstr)(?:\[(\d+)\])?\s+)?("(?:\\.|[^"\\])*")$')
MAGIC = 0x950412DE
CONTEXT = "\x04"
"""The separator of context and text in compiled catalogues, as in Django."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A text and its translation, or its translations if it has a plural."""

    context: str | None = None
    text: str
    plural: str | None = None
    said: tuple[str, ...] = ()
    fuzzy: bool = False

    @property
    def key(self) -> tuple[str | None, str, str | None]:
        return self.context, self.text, self.plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All texts of one language."""

    header: Mapping[str, str]
    entries: tuple[Entry, ...]

    @property
    def forms(self) -> int:
        """The number of plural forms."""
        return int(self.header["Plural-Forms"].split(";")[0].split("=")[1])

    def form(self, count: int) -> int:
        """Return the plural form of a count."""
        rule = self.header["Plural-Forms"].split("plural=")[1].rstrip("; \n")
        return int(c2py(rule)(count))


def read(path: Path) -> Catalogue:
    """Read a .po file without its commented entries."""
    found = list(_entries(path.read_text(encoding="utf-8")))
    heads = [entry for entry in found if not entry.text]
    lines = heads[0].said[0].splitlines() if heads else []
    header = {name: value.strip() for name, _colon, value in (line.partition(":") for line in lines)}
    return Catalogue(header=header, entries=tuple(entry for entry in found if entry.text))


def compiled(catalogue: Catalogue) -> bytes:
    """Return the catalogue as a .mo file, equal to that of `msgfmt`."""
    head = "".join(f"{name}: {value}\n" for name, value in catalogue.header.items())
    texts = {"": head} | {_key(entry): "\0".join(entry.said) for entry in catalogue.entries}
    pairs = sorted((one.encode(), said.encode()) for one, said in texts.items())
    place = 28 + 16 * len(pairs)
    tables: list[bytes] = []
    data = b""
    for column in (0, 1):
        for pair in pairs:
            tables.append(struct.pack("<II", len(pair[column]), place + len(data)))
            data += pair[column] + b"\0"
    top = struct.pack("<7I", MAGIC, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, place)
    return top + b"".join(tables) + data


def told(path: Path) -> dict[str, str]:
    """Read a .mo file; each plural form is a separate entry."""
    with path.open("rb") as file:
        known: Mapping[object, str] = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {f"{key[0]}[{key[1]}]" if isinstance(key, tuple) else str(key): said for key, said in known.items() if key}


def expected(catalogue: Catalogue) -> dict[str, str]:
    """Return the entries that a catalogue's .mo file must have."""
    found = {}
    for entry in catalogue.entries:
        name = f"{entry.context}{CONTEXT}{entry.text}" if entry.context is not None else entry.text
        if entry.plural is None:
            found[name] = entry.said[0]
        else:
            found |= {f"{name}[{number}]": said for number, said in enumerate(entry.said)}
    return found


def _key(entry: Entry) -> str:
    before = "" if entry.context is None else entry.context + CONTEXT
    return before + entry.text + ("" if entry.plural is None else "\0" + entry.plural)


def _entries(text: str) -> Iterator[Entry]:
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.splitlines()]
        fields = _fields(line for line in lines if line and not line.startswith("#"))
        if "msgid" in fields:
            said = [value for name, value in fields.items() if name.startswith("msgstr")]
            yield Entry(
                context=fields.get("msgctxt"),
                text=fields["msgid"],
                plural=fields.get("msgid_plural"),
                said=tuple(said),
                fuzzy=any(line.startswith("#,") and "fuzzy" in line for line in lines),
            )


def _fields(lines: Iterable[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        found = KEYWORD.match(line)
        assert found is not None, f"no line of a catalogue: {line}"
        if found[1]:
            name = found[1] + (found[2] or "")
            fields[name] = ""
        fields[name] += ast.literal_eval(found[3])
    return fields
