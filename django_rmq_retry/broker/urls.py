"""AMQP URLs, read so strictly that a password cannot end up elsewhere. No error quotes any part of its input."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from django_rmq_retry.core.errors import ConfigurationError

PORTS = {"amqp": 5672, "amqps": 5671}
EMBEDDED = "embedded"
QUERY = {"heartbeat": "heartbeat", "blocked_connection_timeout": "blocked_timeout"}
"""The options a URL may bring, and what they are called here; all others are keys of the settings."""
HOW = "Write amqp://user:password@host:5672/vhost"
ENCODE = "Percent-encode these characters in user, password and virtual host: / as %2F, # as %23, ? as %3F, @ as %40"
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Secret:
    """A text that shows itself to nobody who does not ask by ``reveal()``."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "<Secret>"


@dataclass(frozen=True, slots=True)
class Host:
    """Where a broker listens."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """The parts of one URL, decoded."""

    scheme: str
    hosts: tuple[Host, ...] = ()
    user: str | None = None
    password: Secret | None = None
    vhost: str = "/"
    folder: str = ""
    """Where the processes of an embedded broker meet, if the URL says so."""
    options: Mapping[str, float] = field(default_factory=dict)


def read_url(url: Secret) -> Url:
    """The parts of a URL; a wrong one is a ConfigurationError that says what to write."""
    try:
        return _read(url.reveal())
    except ConfigurationError as error:
        problem = str(error)
    # Raised here, so that no frame of the traceback holds the URL: error pages show the variables of frames.
    raise ConfigurationError(problem)


def _read(url: str) -> Url:
    if not url:
        raise ConfigurationError(f"The broker's URL is empty. {HOW}, or embedded:// for the broker without a server.")
    if re.search(r"\s", url):
        raise ConfigurationError(f"The broker's URL contains a space or a line break. {HOW}.")
    scheme, mark, rest = url.partition("://")
    if mark and scheme == EMBEDDED:
        return Url(scheme=EMBEDDED, folder=_folder(rest))
    if not mark or scheme not in PORTS:
        raise ConfigurationError(f"The broker's URL must begin with amqp://, amqps:// or embedded://. {HOW}.")
    if "#" in rest:
        raise ConfigurationError(f"The broker's URL contains a '#'. {ENCODE}.")
    authority, slash, path = re.fullmatch(r"([^/?]*)(/?)(.*)", rest).groups()  # type: ignore[union-attr]  # takes all
    if "@" in path:
        raise ConfigurationError(f"The broker's URL has a '/' or '?' before its '@'. {ENCODE}.")
    login, at, places = authority.rpartition("@")
    if "@" in login:
        raise ConfigurationError(
            f"The broker's URL has more than one '@': user and password stand once, before the first host. {ENCODE}."
        )
    path, _, query = path.partition("?") if slash else ("", "", path.removeprefix("?"))
    user, colon, password = login.partition(":")
    return Url(
        scheme=scheme,
        hosts=tuple(_host(place, PORTS[scheme]) for place in places.split(",")),
        user=_decoded(user) if at else None,
        password=Secret(_decoded(password)) if colon else None,
        vhost=_vhost(path),
        options=dict(_option(pair) for pair in query.split("&") if pair),
    )


def _folder(path: str) -> str:
    if path and not path.startswith("/"):
        raise ConfigurationError(
            "The broker's URL is embedded://, or embedded:///folder with the absolute path of the folder where the "
            "project's processes meet."
        )
    return path


def _host(place: str, port: int) -> Host:
    found = _HOST.fullmatch(place)
    number = int(found["port"] or port) if found else 0
    if not found or not 0 < number < 65536:  # noqa: PLR2004  # the highest port
        raise ConfigurationError(
            "The broker's URL has no valid host after '@' (or after '://'): a name, an IPv4 address or an IPv6 address "
            f"in brackets, each with or without a port from 1 to 65535, several divided by commas. {HOW}; {ENCODE}."
        )
    return Host(found["six"] or found["name"], number)


def _vhost(path: str) -> str:
    if "/" in path:
        raise ConfigurationError(
            "The virtual host in the broker's URL contains a '/': write it as %2F. "
            "The default virtual host '/' is meant when nothing stands after the host."
        )
    return _decoded(path) or "/"


def _decoded(text: str) -> str:
    if _BAD_PERCENT.search(text):
        raise ConfigurationError(
            "The broker's URL contains a '%' without two hexadecimal digits after it. Write a percent sign as %25."
        )
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        problem = "The broker's URL contains percent-encoded bytes that are not UTF-8."
    raise ConfigurationError(problem)


def _option(pair: str) -> tuple[str, float]:
    name, _, value = pair.partition("=")
    if name not in QUERY:
        near = difflib.get_close_matches(name, QUERY, n=1)
        meant = f"Did you mean {near[0]!r}?" if near else f"Known are {' and '.join(QUERY)}."
        raise ConfigurationError(
            f"The broker's URL has an option after '?' that is not known. {meant} "
            "All others are keys of RMQ_RETRY: CONNECT_TIMEOUT, TLS, …"
        )
    if not re.fullmatch(r"[0-9]{1,6}", value):
        raise ConfigurationError(f"The option {name} in the broker's URL takes a whole number of seconds.")
    return QUERY[name], int(value)
