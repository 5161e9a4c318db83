"""The schema of a JSON document: every key, no other, and the kind of each value."""

import re
from dataclasses import dataclass
from typing import Any

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
"""In UTC, and it says so."""


@dataclass(frozen=True, slots=True)
class Each:
    """An object of any names, with values of one kind."""

    shape: Any


def misfits(value: object, shape: Any, place: str = "") -> list[str]:
    """The places of invalid values. A tuple is one of several shapes; a list has one shape for all its items."""
    if isinstance(shape, tuple):
        return [] if any(not misfits(value, one) for one in shape) else [f"{place}: {value!r} is none of {shape}"]
    if isinstance(shape, dict) and isinstance(value, dict):
        names = [f"{place}.{name}: only on one side" for name in sorted(shape.keys() ^ value.keys())]
        return names + [
            found
            for name in shape.keys() & value.keys()
            for found in misfits(value[name], shape[name], f"{place}.{name}")
        ]
    if isinstance(shape, Each) and isinstance(value, dict):
        return [found for name, one in value.items() for found in misfits(one, shape.shape, f"{place}.{name}")]
    if isinstance(shape, list) and isinstance(value, list):
        return [found for one in value for found in misfits(one, shape[0], f"{place}[]")]
    return [] if _is(value, shape) else [f"{place}: {value!r} is no {shape}"]


def _is(value: object, shape: Any) -> bool:
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    if isinstance(shape, type):
        # True is an int to Python only.
        return shape is object or type(value) is shape
    return bool(value == shape) and type(value) is type(shape)


MESSAGE = {
    "schema": "rmq_retry.parked/1",
    **dict.fromkeys(("id", "attempts", "cycle", "version", "copies", "size"), int),
    **dict.fromkeys(("state", "business_key", "message_id", "correlation_id", "type", "handler", "queue"), str),
    **dict.fromkeys(("reason", "error", "requeued_by", "resolution", "sha256", "parked_in", "exchange"), str),
    **dict.fromkeys(("routing_key", "by", "content_type", "content_encoding"), str),
    **dict.fromkeys(("published_at", "failed_at", "held_until", "requeued_at", "resolved_at"), (None, TIME)),
    "parked_at": TIME,
    "group": {"id": int, "title": str, "culprit": str, "fingerprint": str},
    "keys": [str],
}
QUEUE = {
    **dict.fromkeys(("queue", "state"), str),
    "pause": (None, {"by": str, "reason": str, "since": TIME, "until": (None, TIME)}),
    "breaker": (None, {"handler": str, "cause": str, "since": TIME, "failed": int, "next_probe": TIME}),
}
OUTGOING = {
    **dict.fromkeys(("id", "size", "attempts"), int),
    **dict.fromkeys(("message_id", "exchange", "routing_key", "order_key", "error"), str),
    **dict.fromkeys(("created_at", "due_at"), TIME),
    "failed_at": (None, TIME),
}
ATTEMPT = {
    "started_at": TIME,
    **dict.fromkeys(("cycle", "number", "pid"), int),
    **dict.fromkeys(("verdict", "reason", "error", "error_text", "host", "deploy"), str),
    "seconds": float,
}
DEATH = {
    **dict.fromkeys(("queue", "reason", "exchange", "expiration"), str),
    "count": int,
    "routing_keys": [str],
    "at": (None, TIME),
}
GROUP = {
    **dict.fromkeys(("id", "parked", "requeued", "processed", "discarded", "failed_again", "recent"), int),
    **dict.fromkeys(("title", "culprit", "reason", "note"), str),
    **dict.fromkeys(("first_seen", "last_seen"), TIME),
    "growing": bool,
}
RUN = {
    **dict.fromkeys(("id", "total", "sent", "processed", "failed", "skipped", "unconfirmed"), int),
    **dict.fromkeys(("state", "wait", "note", "by", "reason", "target"), str),
    **dict.fromkeys(("one_by_one", "canary"), bool),
    "rate": float,
    "max_depth": (None, int),
    "stop_at": (None, float),
    "created_at": TIME,
    "started_at": (None, TIME),
    "finished_at": (None, TIME),
}
FINDING = {"name": str, "count": int, "left_out": bool, "why": str, "examples": [[(int, str)]]}
ACT = {
    "at": TIME,
    "number": int,
    "count": int,
    "facts": dict,
    "ip": (None, str),
    **dict.fromkeys(("by", "account", "behalf", "action", "reason", "subject", "source", "seal"), str),
    **dict.fromkeys(("message", "group", "run"), (None, int)),
}
LEVEL = {
    **dict.fromkeys(("name", "role", "remark"), str),
    **dict.fromkeys(("ready", "unacked", "consumers"), (None, int)),
    **dict.fromkeys(("in_per_second", "out_per_second"), (None, float)),
    **dict.fromkeys(("stopped", "abandoned"), bool),
    "problems": [str],
}
STOPPED = {
    **dict.fromkeys(("queue", "by", "reason", "cause"), str),
    **dict.fromkeys(("paused", "breaker_open"), bool),
    **dict.fromkeys(("since", "until", "open_since"), (None, TIME)),
}
HALTED = {
    **dict.fromkeys(("queue", "error", "by"), str),
    "since": (None, TIME),
    "attempt": (None, int),
    "message_id": (None, str),
}
CONSUMER = {
    **dict.fromkeys(("state", "host", "version", "deploy", "broker"), str),
    **dict.fromkeys(("pid", "number", "threads", "waiting"), int),
    **dict.fromkeys(("started_at", "beat_at"), TIME),
    "queues": [str],
    "in_flight": [
        {
            **dict.fromkeys(("queue", "handler", "key", "message_id"), str),
            "attempt": int,
            "since": (None, TIME),
            "seconds": float,
            "timeout": (None, float),
            **dict.fromkeys(("late", "delivered_again"), bool),
        }
    ],
}
ITEM = {
    **dict.fromkeys(("kind", "name", "state"), str),
    "differences": [{"argument": str, "here": object, "broker": object}],
    "problem": (None, str),
}
MATCH = {"id": int, "state": str, "run": (None, int)}
KEYS = {
    **dict.fromkeys(("keys", "found"), int),
    "not_found": [str],
    **dict.fromkeys(("several", "not_open"), Each([MATCH])),
    "differs_in_case": Each([str]),
}
LISTS = {
    "keys": (None, KEYS),
    "except": (
        None,
        {
            **dict.fromkeys(("keys", "messages"), int),
            "not_found": [str],
            "elsewhere": Each(MATCH),
            "several": Each(int),
            "differs_in_case": Each([str]),
        },
    ),
}
CHANGED = {"changed": int, "left": int, **LISTS}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "parked_list/1": {"total": int, "items": [MESSAGE], "next": (None, str)},
    "parked_groups/1": {"items": [GROUP], "next": (None, str)},
    "parked_show/1": {
        "message": MESSAGE,
        "detail": str,
        "deaths": (None, [DEATH]),
        "attempts": [ATTEMPT],
        "body": (None, str),
    },
    "parked_requeue_runs/1": {"items": [RUN]},
    "parked_requeue_run/1": {"run": RUN},
    "parked_requeue_preview/1": {
        "total": int,
        "sendable": int,
        "findings": [FINDING],
        "queues": Each(int),
        "stop_at": (None, float),
        "selection": str,
        **LISTS,
    },
    "parked_keys/1": KEYS,
    "blocked_list/1": {
        **dict.fromkeys(("keys", "waiting"), int),
        "full": bool,
        "items": [
            {
                **dict.fromkeys(("handler", "key", "queue", "goes_first"), str),
                "parked": bool,
                "record": (None, int),
                "since": TIME,
                "waiting": int,
            }
        ],
    },
    "blocked_unblock/1": {"handler": str, "unblocked": [str]},
    "parked_preview/1": {"action": str, "count": int, "selection": str, **LISTS},
    **{f"parked_{act}/1": CHANGED for act in ("discard", "restore", "hold", "unhold")},
    "parked_edit/1": {"id": int, "version": int, "sha256": str},
    "parked_import/1": {"stored": int, "refused": int, "problems": [[(int, str)]]},
    "parked_purge/1": {"counts": Each(int), "done": bool},
    "audit_list/1": {"items": [ACT]},
    "audit_verify/1": {"rows": int, "problems": [str]},
    "audit_purge/1": {"count": int, "done": bool},
    "relay_list/1": {"database": str, "waiting": int, "failed": int, "items": [OUTGOING]},
    **{f"relay_{act}/1": {"database": str, "count": int} for act in ("retry", "discard")},
    **{f"queue_{act}/1": {"items": [QUEUE]} for act in ("list", "pause", "resume")},
    "status/1": {
        "broker": str,
        "round_trip_seconds": float,
        "database": {
            "alias": (None, str),
            **dict.fromkeys(("round_trip_seconds", "clock_ahead_seconds"), (None, float)),
            "problem": (None, str),
        },
        "topology": dict.fromkeys(("as_declared", "of", "not_visible"), int),
        "queues": [LEVEL],
        "consumers": int,
        "parked": (None, {"count": int, "recent": int, "oldest": (None, TIME)}),
        "runs": (None, int),
        "outbox": (None, {"waiting": int, "failed": int, "oldest": (None, TIME)}),
        "blocked": (None, {"keys": int, "messages": int, "most": int, "oldest": (None, TIME)}),
        "stopped": (None, [STOPPED]),
        "halted": (None, [HALTED]),
        "problems": [str],
        "blind": str,
    },
    "consumers/1": {"items": [CONSUMER]},
    "doctor/1": {
        **dict.fromkeys(("problems", "warnings"), int),
        "not_looked_at": [str],
        "findings": [dict.fromkeys(("area", "level", "problem", "why", "fix"), str)],
    },
    "declare/1": {
        "broker": str,
        "server": str,
        "written": bool,
        "items": [ITEM],
        "deleted": [str],
        "kept": Each(str),
        "recreated": (None, {"queue": str, "moved": int}),
    },
    "delete/1": {"broker": str, "deleted": [str], "missing": [str], "kept": Each(str), "exchanges": [str]},
    "roles/1": {"roles": Each([str]), "done": bool},
    "publish/1": {"message_id": str, "exchange": str, "routing_key": str, "bytes": int},
}
"""By the name that each document bears. A key that goes, or changes its kind, makes it the next version."""


def wrong(document: dict[str, Any], schema: str) -> list[str]:
    """The deviations from the schema."""
    return misfits(document, {"schema": f"rmq_retry.{schema}", "at": TIME, **DOCUMENTS[schema]})
