"""For settings files: ``RMQ_RETRY = rmq_settings(env)`` reads the environment with django-environ."""

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import environ  # type: ignore[import-untyped]  # it has neither stubs nor py.typed

from django_rmq_retry.amqp.address import Secret

__all__ = ["PREFIX", "VARIABLES", "Secret", "rmq_settings"]

PREFIX = "RMQ_"
Cast = type | Callable[[str], object]
NESTED = ("TLS", "OPERATORS", "ALERTS", "LINKS", "FOUR_EYES")
"""Keys of ``RMQ_RETRY`` that are dicts: ``RMQ_TLS_CA_FILE`` sets ``RMQ_RETRY["TLS"]["CA_FILE"]``."""


def _limit(value: str) -> int | None:
    return None if value.lower() == "none" else int(value)


def _databases(value: str) -> bool | list[str]:
    """Parse the outbox switch, or the list of its databases."""
    if value.lower() in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        return value.lower() in environ.Env.BOOLEAN_TRUE_STRINGS
    return [name.strip() for name in value.split(",") if name.strip()]


def _recipients(value: str) -> str | list[str]:
    """Parse the word for Django's ADMINS, or a list of addresses."""
    return value if "@" not in value else [address.strip() for address in value.split(",") if address.strip()]


VARIABLES: Mapping[str, Cast] = {
    "URL": Secret,
    "PASSWORD": Secret,
    "HEARTBEAT": int,
    "CONNECT_TIMEOUT": float,
    "BLOCKED_TIMEOUT": float,
    "PUBLISH_TIMEOUT": float,
    "SHUTDOWN_TIMEOUT": float,
    "PREFETCH": int,
    "THREADS": int,
    "ASYNC_HANDLERS": int,
    "LIFESPAN": str,
    "CRASH_LIMIT": _limit,
    "BODY_BYTES": int,
    "BODY_ELEMENTS": int,
    "QUEUE_TYPE": str,
    "POLICY": str,
    "REPLY_TO": list,
    "TOPOLOGY": list,
    "RECORDS": bool,
    "PARKED_QUEUES": list,
    "VERSION": str,
    "OUTBOX": _databases,
    "INBOX_DAYS": int,
    "BLOCKED_PER_KEY": int,
    "BLOCKED_TOTAL": int,
    "AROUND": list,
    "TLS_CA_FILE": str,
    "TLS_CERT_FILE": str,
    "TLS_KEY_FILE": str,
    "TLS_VERIFY": bool,
    "TLS_SERVER_NAME": str,
    "OPERATORS_MASK": list,
    "OPERATORS_REQUEUE_MAX_AGE": float,
    "OPERATORS_PERMIT": str,
    "OPERATORS_CONTACT": str,
    "OPERATORS_ENVIRONMENT": str,
    "OPERATORS_MANAGEMENT_URL": Secret,
    "OPERATORS_ATTEMPT_DAYS": int,
    "OPERATORS_RESOLVED_DAYS": int,
    "OPERATORS_AUDIT_DAYS": int,
    "ALERTS_MAIL": _recipients,
    "ALERTS_WEBHOOK": Secret,
    "ALERTS_SECRET": Secret,
    "ALERTS_WINDOW": float,
    "ALERTS_LEVEL": str,
    "ALERTS_WITHOUT": list,
    "ALERTS_ADMIN_URL": str,
    "ALERTS_RUNBOOK": str,
    "LINKS_LOGS": str,
    "LINKS_TICKET": str,
    "LINKS_CUSTOMER": str,
    "LINKS_RUNBOOK": str,
    "LINKS_TRACE": str,
    "FOUR_EYES_EDIT": _limit,
    "FOUR_EYES_DISCARD": _limit,
    "FOUR_EYES_REQUEUE": _limit,
    "FOUR_EYES_CLOSE_BREAKER": bool,
    "FOUR_EYES_REQUIRE_ACCOUNT": bool,
    "FOUR_EYES_EXPIRE_AFTER": int,
}
"""The variables, without ``RMQ_``. A string setting may also come from the file named by its name with ``_FILE``."""


def rmq_settings(env: environ.Env | None = None, **others: object) -> dict[str, object]:
    """Return the dict for ``RMQ_RETRY`` from ``RMQ_URL`` and the like; the environment overrides ``others``.

    Values are taken literally: a password that starts with ``$`` is not expanded, and a URL reaches the parser whole.
    URLs and passwords become Secret, which Django's error pages hide.
    """
    variables: Mapping[str, str] = os.environ if env is None else env.ENVIRON
    _refuse_misspelt(variables)
    options: dict[str, object] = dict(others)
    for name, cast in VARIABLES.items():
        text = _text(variables, PREFIX + name)
        if text is None:
            continue
        value = _cast(name, cast, text)
        key = next((one for one in NESTED if name.startswith(f"{one}_")), "")
        if key:
            already = options.get(key)
            part = name.removeprefix(f"{key}_")
            options[key] = {**(already if isinstance(already, dict) else {}), part: value}
        else:
            options[name] = value
    return options


def _text(variables: Mapping[str, str], name: str) -> str | None:
    """Return the variable, or its file without the final line end; an empty variable is not set."""
    file = variables.get(f"{name}_FILE")
    if not file:
        return variables.get(name) or None
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n") or None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    raise environ.ImproperlyConfigured(f"{name}_FILE names the file {file!r}, which cannot be read: {reason}.")


def _cast(name: str, cast: Cast, text: str) -> object:
    if cast is Secret:
        return Secret(text)
    try:
        return environ.Env.parse_value(text, cast)
    except ValueError:
        expected = "a whole number" if cast in (int, _limit) else "a number"
    raise environ.ImproperlyConfigured(f"The environment variable {PREFIX}{name} takes {expected}, not {text!r}.")


def _refuse_misspelt(variables: Mapping[str, str]) -> None:
    """Refuse a variable with our prefix whose name is nearly one of ours; other variables may belong to other
    programs.
    """
    for name in variables:
        bare = name.removeprefix(PREFIX).removesuffix("_FILE")
        if not name.startswith(PREFIX) or bare in VARIABLES or name.removeprefix(PREFIX) in VARIABLES:
            continue
        moved = [known for known in VARIABLES if known == f"OPERATORS_{bare}"]
        near = moved or difflib.get_close_matches(bare, VARIABLES, n=1, cutoff=0.85)
        if near:
            raise environ.ImproperlyConfigured(f"Unknown environment variable {name}. Did you mean {PREFIX}{near[0]}?")
