"""Broker addresses: hosts, virtual host, credentials, TLS and timeouts, parsed from URLs. No password is ever shown."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from django_rmq_retry.errors import ConfigurationError

PORTS = {"amqp": 5672, "amqps": 5671}
EMBEDDED = "embedded"
QUERY = {"heartbeat": "heartbeat", "blocked_connection_timeout": "blocked_timeout"}
"""The options allowed in a URL's query, by their field name here; all other options are keys of the settings."""
HOW = "Write amqp://user:password@host:5672/vhost"
ENCODE = "Percent-encode these characters in user, password and virtual host: / as %2F, # as %23, ? as %3F, @ as %40"
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_NEXT_URL = re.compile(r";(?=[a-z]+://)")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")

__all__ = ["Access", "Host", "Secret", "Tls"]

GUEST = "guest"
UNPLACED = (
    "The broker embedded:// needs no server, but it is found through a project's settings only: name it in "
    "RMQ_RETRY['URL']."
)


class Secret:
    """A string that only ``reveal()`` returns; its ``repr`` hides it."""

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
    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    scheme: str
    hosts: tuple[Host, ...] = ()
    user: str | None = None
    password: Secret | None = None
    vhost: str = "/"
    folder: str = ""
    """The folder through which the processes of an embedded broker find each other, if the URL names one."""
    options: Mapping[str, float] = field(default_factory=dict)


def read_url(url: Secret) -> Url:
    """Return the parts of a URL; for an invalid URL raise a ConfigurationError with the correct form."""
    try:
        return _read(url.reveal())
    except ConfigurationError as error:
        problem = str(error)
    # Raised outside the `except`, so that no frame of the traceback holds the URL: error pages show frames' variables.
    raise ConfigurationError(problem)


def _read(url: str) -> Url:
    if not url:
        raise ConfigurationError(f"The broker's URL is empty. {HOW}, or embedded:// for the broker without a server.")
    if re.search(r"\s", url):
        raise ConfigurationError(f"The broker's URL contains a space or a line break. {HOW}.")
    scheme, mark, rest = url.partition("://")
    if mark and scheme == EMBEDDED:
        return Url(scheme=EMBEDDED, folder=_folder(rest))
    if scheme == "pyamqp":  # Celery's name for it
        scheme = "amqp"
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
    match = _HOST.fullmatch(place)
    number = int(match["port"] or port) if match else 0
    if not match or not 0 < number < 65536:  # noqa: PLR2004  # the highest port
        raise ConfigurationError(
            "The broker's URL has no valid host after '@' (or after '://'): a name, an IPv4 address or an IPv6 address "
            f"in brackets, each with or without a port from 1 to 65535, several divided by commas. {HOW}; {ENCODE}."
        )
    return Host(match["six"] or match["name"], number)


def _vhost(path: str) -> str:
    if path == "/":  # Celery's amqp://host//
        return path
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


Password = str | Secret | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The TLS settings of an amqps:// connection; without ``ca_file`` the system's certificates are used."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    """The name in the broker's certificate, if it differs from the host name."""

    def __post_init__(self) -> None:
        if self.key_file and not self.cert_file:
            raise ConfigurationError("TLS names a key_file without its cert_file; name both.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The address, credentials and timeouts of a connection, made by ``Access.parse``. Times are in seconds."""

    hosts: tuple[Host, ...]
    vhost: str = "/"
    user: str = GUEST
    password: Secret = field(default_factory=lambda: Secret(GUEST))
    tls: Tls | None = None
    heartbeat: int = 15
    blocked_timeout: float = 10
    connect_timeout: float = 15
    publish_timeout: float = 10
    name: str = ""
    folder: str = ""
    """The folder through which the processes of an embedded broker find each other, if not the project's default."""
    source: Callable[[], "Access"] | None = field(default=None, repr=False, compare=False)
    """Returns the current access, if credentials can change while the process runs."""

    def __post_init__(self) -> None:
        if type(self.heartbeat) is not int or not 1 <= self.heartbeat <= 600:  # noqa: PLR2004  # ten minutes
            raise ConfigurationError(
                f"heartbeat takes whole seconds from 1 to 600, not {self.heartbeat!r}. "
                "Without heartbeats a broker that is gone is never noticed; 15 is the default."
            )
        for part in ("blocked_timeout", "connect_timeout", "publish_timeout"):
            value = getattr(self, part)
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise ConfigurationError(f"{part} takes seconds above 0, not {value!r}.")

    @property
    def embedded(self) -> bool:
        """True if this is the embedded broker, which needs no RabbitMQ server."""
        return not self.hosts

    @property
    def shown(self) -> str:
        """The URL without the password: ``amqp://app@rabbit:5672/pay``."""
        if self.embedded:
            return f"{EMBEDDED}://"
        scheme = "amqps" if self.tls else "amqp"
        hosts = ",".join(map(str, self.hosts))
        return f"{scheme}://{quote(self.user, safe='')}@{hosts}/{quote(self.vhost, safe='')}"

    def __str__(self) -> str:
        return self.shown

    def current(self) -> "Access":
        """Return the access with current credentials. Call it before each connect: they may have been rotated."""
        return self if self.source is None else self.source()

    @classmethod
    def parse(
        cls,
        url: str | Secret | Iterable[str | Secret] | Callable[[], str | Sequence[str]],
        *,
        password: Password | None = None,
        tls: Tls | None = None,
        **options: object,
    ) -> "Access":
        """Make an Access from one URL, the URLs of one cluster, or a function that returns them before each connect."""
        if callable(url):
            asked = url
            return replace(
                cls.parse(asked(), password=password, tls=tls, **options),
                source=lambda: cls.parse(asked(), password=password, tls=tls, **options),
            )
        urls = [read_url(one) for one in _each(url)]
        if not urls:
            raise ConfigurationError("The list of broker URLs is empty; name at least one.")
        first = urls[0]
        _agree(urls)
        if first.scheme == EMBEDDED:
            return cls(hosts=(), folder=first.folder, **options)  # type: ignore[arg-type]  # by __post_init__
        if tls is not None and first.scheme != "amqps":
            raise ConfigurationError("TLS is set but the broker's URL begins with amqp://. Write amqps://.")
        access = cls(
            hosts=tuple(dict.fromkeys(host for one in urls for host in one.hosts)),
            vhost=first.vhost,
            user=GUEST if first.user is None else first.user,
            password=_password(first, password),
            tls=(tls or Tls()) if first.scheme == "amqps" else None,
            **{**options, **first.options},  # type: ignore[arg-type]  # checked by __post_init__
        )
        if not callable(password):
            return access
        asked_for = password
        return replace(access, source=lambda: replace(access, password=Secret(asked_for())))


def _each(url: str | Secret | Iterable[str | Secret]) -> list[Secret]:
    """Return URLs given one by one, or in one text divided by semicolons, as in Celery."""
    given = [url] if isinstance(url, (str, Secret)) else list(url)
    texts = (one.reveal() if isinstance(one, Secret) else one for one in given)
    return [Secret(part) for text in texts for part in _NEXT_URL.split(text)]


def _agree(urls: Sequence[Url]) -> None:
    for part in ("scheme", "user", "password", "vhost", "folder", "options"):
        if any(getattr(one, part) != getattr(urls[0], part) for one in urls):
            raise ConfigurationError(
                f"The broker's URLs differ in their {part}. They name hosts of one cluster: "
                f"write the same {part} in each."
            )


def _password(url: Url, given: Password | None) -> Secret:
    if given is not None and url.password is not None:
        raise ConfigurationError(
            "The broker's password is given twice: in the URL and by itself. Take it out of the URL."
        )
    if given is not None:
        password = given() if callable(given) else given
        return password if isinstance(password, Secret) else Secret(password)
    if url.password is not None:
        return url.password
    if url.user not in (None, GUEST):
        raise ConfigurationError(
            "The broker's URL names a user without a password. Write it after the user "
            "(amqp://user:password@host), or set RMQ_RETRY['PASSWORD']."
        )
    return Secret(GUEST)
