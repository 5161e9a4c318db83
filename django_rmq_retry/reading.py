"""Readers of single settings: each returns the value as it is meant, or says what was expected and what came."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_rmq_retry.broker.address import Password, Tls
from django_rmq_retry.broker.urls import Secret
from django_rmq_retry.core.policy import Policy
from django_rmq_retry.core.topology import Exchange, Queue

Reader = Callable[[str, object], object]
Urls = tuple[Secret, ...] | Callable[[], str | list[str]]


def wrong(key: str, expected: str, came: str, advice: str = "") -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{key} takes {expected}, not {came}.{advice and ' '}{advice}")


def refuse_unknown(where: str, given: Iterable[object], known: Iterable[str]) -> None:
    """Every key must be known; of an unknown one only the name is quoted."""
    names = sorted(known)
    for key in given:
        if key in names:
            continue
        near = difflib.get_close_matches(str(key).upper(), names, n=1, cutoff=0.5)
        meant = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(names)}."
        raise ImproperlyConfigured(f"{where} has no key {key!r}. {meant}")


def url(key: str, value: object) -> Urls:
    expected = "an AMQP URL, a list of them, or a function that returns one"
    if callable(value):
        return value
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not given or not all(isinstance(one, (str, Secret)) for one in given):
        raise wrong(key, expected, f"a {type(value).__name__}", "Its value is not shown here.")
    return tuple(one if isinstance(one, Secret) else Secret(str(one)) for one in given)


def password(key: str, value: object) -> Password | None:
    if value is None or isinstance(value, Secret) or callable(value):
        return value
    if isinstance(value, str):
        return Secret(value)
    raise wrong(
        key, "a text or a function that returns one", f"a {type(value).__name__}", "Its value is not shown here."
    )


def management(key: str, value: object) -> Secret | None:
    if value is None:
        return None
    given = Secret(value) if isinstance(value, str) else value
    if isinstance(given, Secret) and urlsplit(given.reveal()).scheme in {"http", "https"}:
        return given
    raise wrong(key, "an http:// or https:// URL", f"a {type(value).__name__} without it", "It is not shown here.")


def tls(key: str, value: object) -> Tls | None:
    if value is None or isinstance(value, Tls):
        return value
    if not isinstance(value, dict):
        raise wrong(key, "a dict such as {'CA_FILE': '/etc/ssl/ours.pem'}", repr(value))
    refuse_unknown(key, value, _TLS)
    parts = {name.lower(): _TLS[name](f"{key}[{name!r}]", part) for name, part in value.items()}
    return Tls(**parts)  # type: ignore[arg-type]  # each reader returns what its part takes


def path(key: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if hasattr(value, "__fspath__"):
        return str(value)
    raise wrong(key, "the path of a file", repr(value))


def text(key: str, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise wrong(key, "a text that is not empty", repr(value))


def text_or_function(key: str, value: object) -> str | Callable[[], str]:
    if callable(value) or isinstance(value, str):
        return value
    raise wrong(key, "a text or a function that returns one", repr(value))


def function(key: str, value: object) -> Callable[..., object] | None:
    if value is None or callable(value):
        return value
    found = _imported(key, value) if isinstance(value, str) else value
    if callable(found):
        return found
    raise wrong(key, "a function, or the dotted path to one", repr(value))


def switches(key: str, value: object) -> Mapping[str, bool]:
    if isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, bool) for k, v in value.items()):
        return dict(value)
    raise wrong(key, "a dict such as {'payment.*': True}", repr(value))


def texts(key: str, value: object) -> Mapping[str, str]:
    if isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair):
        return dict(value)
    raise wrong(key, "a dict such as {'BankDown': 'The bank did not answer.'}", repr(value))


def yes_or_no(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(key, "True or False", repr(value))


def databases(key: str, value: object) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) and one for one in value):
        return tuple(value)
    raise wrong(key, "True, False, or a list of names out of DATABASES", repr(value))


def seconds(key: str, value: object) -> float:
    if type(value) in (int, float) and 0 < value < float("inf"):  # type: ignore[operator]  # a number
        return value  # type: ignore[return-value]  # a number
    raise wrong(key, "seconds above 0, as a number", repr(value))


def whole(low: int, high: int, *, none: str = "") -> Reader:
    """A reader of whole numbers; ``none`` says what None means where it is allowed."""

    def read(key: str, value: object) -> int | None:
        if (value is None and none) or (type(value) is int and low <= value <= high):
            return value
        raise wrong(key, f"a whole number from {low} to {high}{none and f', or None for {none}'}", repr(value))

    return read


def one_of(*known: str) -> Reader:
    def read(key: str, value: object) -> str:
        if isinstance(value, str) and value in known:
            return value
        near = difflib.get_close_matches(str(value), known, n=1)
        raise wrong(key, " or ".join(map(repr, known)), repr(value), f"Did you mean {near[0]!r}?" if near else "")

    return read


def patterns(key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) and one for one in value):
        return tuple(value)
    raise wrong(key, "a list of queue names, in which * stands for anything", repr(value))


def policy(key: str, value: object) -> Policy:
    found = _imported(key, value) if isinstance(value, str) else value
    if isinstance(found, Policy):
        return found
    raise wrong(key, "a policy, such as RetryThenPark(), or the dotted path to one", repr(value))


def topology(key: str, value: object) -> tuple[Exchange | Queue, ...]:
    expected = "a list of Exchange and Queue objects, or of dotted paths to such"
    if not isinstance(value, (list, tuple)):
        raise wrong(key, expected, repr(value))
    found: list[Exchange | Queue] = []
    for part in value:
        meant = _imported(key, part) if isinstance(part, str) else part
        for one in meant if isinstance(meant, (list, tuple)) else [meant]:
            if not isinstance(one, (Exchange, Queue)):
                raise wrong(key, expected, repr(part))
            found.append(one)
    return tuple(found)


def _imported(key: str, dotted: str) -> object:
    try:
        return import_string(dotted)
    except ImportError as error:
        raise ImproperlyConfigured(f"{key} names {dotted!r}, which cannot be imported: {error}.") from error


_TLS: dict[str, Callable[[str, object], str | bool | None]] = {
    "CA_FILE": path,
    "CERT_FILE": path,
    "KEY_FILE": path,
    "VERIFY": yes_or_no,
    "SERVER_NAME": text,
}
