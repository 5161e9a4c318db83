"""How to get to the broker: hosts, virtual host, credentials, TLS and patience. Never shows the password."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from django_rmq_retry.broker.urls import EMBEDDED, Host, Secret, Url, read_url
from django_rmq_retry.core.errors import ConfigurationError

__all__ = ["Access", "Host", "Secret", "Tls"]

GUEST = "guest"
UNPLACED = (
    "The broker embedded:// needs no server, but it is found through a project's settings only: name it in "
    "RMQ_RETRY['URL']."
)
Password = str | Secret | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What an amqps:// connection is checked with; the system's certificates where no file is named."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    """The name in the broker's certificate, where it is not the host's."""

    def __post_init__(self) -> None:
        if self.key_file and not self.cert_file:
            raise ConfigurationError("TLS names a key_file without its cert_file; name both.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Everything a connection needs to know; made by ``Access.parse``. Times are seconds."""

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
    """Where the processes of an embedded broker meet, if not in the project's usual place."""
    source: Callable[[], "Access"] | None = field(default=None, repr=False, compare=False)
    """Where newer credentials come from, when they change while the process runs."""

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
        """Whether the broker is the one without a server."""
        return not self.hosts

    @property
    def shown(self) -> str:
        """The URL as anybody may see it: ``amqp://app@rabbit:5672/pay``."""
        if self.embedded:
            return f"{EMBEDDED}://"
        scheme = "amqps" if self.tls else "amqp"
        hosts = ",".join(map(str, self.hosts))
        return f"{scheme}://{quote(self.user, safe='')}@{hosts}/{quote(self.vhost, safe='')}"

    def __str__(self) -> str:
        return self.shown

    def current(self) -> "Access":
        """The access as it is now, to be asked for before each connect: credentials may have been rotated."""
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
        """From one URL, several of one cluster, or a function that returns them, called before each connect."""
        if callable(url):
            asked = url
            return replace(
                cls.parse(asked(), password=password, tls=tls, **options),
                source=lambda: cls.parse(asked(), password=password, tls=tls, **options),
            )
        given = [url] if isinstance(url, (str, Secret)) else list(url)
        urls = [read_url(one if isinstance(one, Secret) else Secret(one)) for one in given]
        if not urls:
            raise ConfigurationError("The list of broker URLs is empty; name at least one.")
        first = urls[0]
        _agree(urls)
        if first.scheme == EMBEDDED:
            return cls(hosts=(), folder=first.folder, **options)  # type: ignore[arg-type]  # by __post_init__
        if tls is not None and first.scheme != "amqps":
            raise ConfigurationError("TLS is set but the broker's URL begins with amqp://. Write amqps://.")
        found = cls(
            hosts=tuple(dict.fromkeys(host for one in urls for host in one.hosts)),
            vhost=first.vhost,
            user=GUEST if first.user is None else first.user,
            password=_password(first, password),
            tls=(tls or Tls()) if first.scheme == "amqps" else None,
            **{**options, **first.options},  # type: ignore[arg-type]  # checked by __post_init__
        )
        if not callable(password):
            return found
        asked_for = password
        return replace(found, source=lambda: replace(found, password=Secret(asked_for())))


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
        said = given() if callable(given) else given
        return said if isinstance(said, Secret) else Secret(said)
    if url.password is not None:
        return url.password
    if url.user not in (None, GUEST):
        raise ConfigurationError(
            "The broker's URL names a user without a password. Write it after the user "
            "(amqp://user:password@host), or set RMQ_RETRY['PASSWORD']."
        )
    return Secret(GUEST)
