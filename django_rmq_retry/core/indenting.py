"""Sets a JSON text out in lines; each of its words stays as it was written, so no number is rounded."""

from django_rmq_retry.core.masking import tokens

STEP = "  "


def indented(text: str) -> str:
    """A line for each entry. The text is JSON: whoever calls has made sure of it."""
    pieces: list[str] = []
    depth, before = 0, ""
    for word, _start, _stop in tokens(text):
        if word in "}]":
            depth = max(0, depth - 1)
        ends, begins = word in "}]" and before not in "{[", before in ("{", "[", ",") and word not in "}]"
        if pieces and (ends or begins):
            pieces.append("\n" + STEP * depth)
        pieces.append(": " if word == ":" else word)
        depth += word in "{["
        before = word
    return "".join(pieces)
