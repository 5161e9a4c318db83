"""An exception as the JSON text that an attempt keeps: at most 64 kB, and nothing in it that a database refuses."""

import json
import linecache
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django_rmq_retry.core.tracing import Cause, Frame, Stack
from django_rmq_retry.core.verdict import short

LIMIT = 64 * 1024
TEXT_LIMIT = 2000
CODE_LIMIT = 200


def chain_of(causes: Sequence[Cause]) -> str:
    """A list of causes, the newest first: error, link, frames, how many frames were left out, and text."""
    parts = [_cause(cause, cause.stack) for cause in causes]
    if sum(len(part) + 1 for part in parts) > LIMIT - 2:
        parts = _shortened(causes, parts)
    return f"[{','.join(parts)}]"


def _shortened(causes: Sequence[Cause], parts: Sequence[str]) -> list[str]:
    """All that were thrown are told, and as many frames of the newest as there is room for."""
    bare = [_cause(one, Stack(left_out=one.stack.left_out + len(one.stack.frames))) for one in causes]
    room = LIMIT - 2 - sum(len(part) + 1 for part in bare)
    while room < 0:
        room += len(bare.pop()) + 1
    kept: list[str] = []
    for whole, short_one in zip(parts, bare, strict=False):
        more = len(whole) - len(short_one)
        kept.append(whole if more <= room else short_one)
        room -= more if more <= room else 0
    return kept


def _cause(cause: Cause, stack: Stack) -> str:
    """In ASCII: such a text fits into every database, whatever its character set."""
    text = cause.text if len(cause.text) <= TEXT_LIMIT else short(cause.text, TEXT_LIMIT)
    return f"{_head(cause.kind, cause.link, stack)}{json.dumps(text)}}}"


@lru_cache(maxsize=512)
def _head(kind: str, link: str, stack: Stack) -> str:
    """All but the text, which is the same for all failures in one place."""
    frames = [_frame(stack, place) for place in range(len(stack.frames))]
    told = json.dumps({"error": kind, "link": link, "frames": frames, "left_out": stack.left_out})
    return f'{told[:-1]}, "text": '


def _below_its_root(frame: Frame) -> str:
    """The file as it stands in the project, not where this machine has it: the same on all of them."""
    tail = frame.module.replace(".", "/")
    ends = (f"{tail}.py", f"{tail}/__init__.py")
    return next((end for end in ends if frame.file.endswith(f"/{end}")), frame.file)


def _frame(stack: Stack, place: int) -> dict[str, Any]:
    frame = stack.frames[place]
    told: dict[str, Any] = {
        "file": _below_its_root(frame),
        "line": frame.line,
        "module": frame.module,
        "function": frame.function,
        "own": frame.own,
    }
    # Of others' code only the line that raised.
    if frame.own or place == len(stack.frames) - 1:
        told["code"] = short(linecache.getline(frame.file, frame.line).strip(), CODE_LIMIT)
    return told
