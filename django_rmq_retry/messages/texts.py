"""Texts that every header, log and database accepts: they are short, and hold no NUL and no lone surrogate."""

from dataclasses import dataclass

ERROR_KIND_BYTES = 100
ERROR_TEXT_BYTES = 400
COLUMN_BYTES = 255
"""The most bytes of a name or a reason that is stored in a column: these columns hold 255 characters."""

REASON_CHARACTERS = 255
"""The most characters of what an operator writes that is stored: of a reason, or a remark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorNote:
    """The class and text of an exception, short enough for a header. Creating it never raises."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "ErrorNote":
        return cls(kind=short(type(error).__name__, ERROR_KIND_BYTES), text=short(error))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


def one_line(error: BaseException) -> str:
    """Return an error's text as a part of a sentence: on one line, without its full stop; its class if it has none."""
    text = " ".join(short(error, 4 * ERROR_TEXT_BYTES).split()).removesuffix(".")
    return short(text or type(error).__name__)


def short(value: object, limit: int = ERROR_TEXT_BYTES) -> str:
    """Return a text of at most `limit` bytes of UTF-8, safe for any header, log and database: no NUL, no surrogate."""
    try:
        text = str(value)
    except BaseException as broken:  # noqa: BLE001 - any error of __str__ is caught, because the message must be parked
        text = f"(its text cannot be read: {type(broken).__name__})"
    if len(text) <= limit and text.isascii() and "\0" not in text:
        return text
    encoded = text[: limit + 1].encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"


def short_reason(text: str) -> str:
    """Return what an operator wrote as it is stored: its fields take characters, of any alphabet, and not bytes."""
    # No character has more than four bytes.
    whole = short(text, 4 * REASON_CHARACTERS)
    return whole if len(whole) <= REASON_CHARACTERS else f"{whole[: REASON_CHARACTERS - 1]}…"
