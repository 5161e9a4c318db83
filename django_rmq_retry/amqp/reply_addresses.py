"""Which direct reply-to addresses are worth an answer; a sender may have made one up.

RabbitMQ before 4.3 closes a connection that publishes to an address that it cannot resolve. An address names an Erlang
process of one of its nodes: base64 of the process id, a dot, a key. The broker resolves either every address of a
family or none, so one address that worked stands for its whole family.
"""

import re
import time
from base64 import b64decode

from django_rmq_retry.amqp.frames import DIRECT_PREFIX

MOST_REMEMBERED = 4096
BANNED_SECONDS = 60.0
"""Seconds without answers for a family after an address closed a connection: its node may join the cluster later."""

# Base64 of an Erlang pid (EXTERNAL_TERM_FORMAT: 103 or 88, the node as an atom, 9 or 12 bytes), a dot, a key.
_ADDRESS = re.compile(r"(?P<pid>[A-Za-z0-9+/]+={0,2})\.[A-Za-z0-9+/]+={0,2}")
_PID = re.compile(rb"\x83(?:g|X)(?:[dv](?P<long>..)|[sw](?P<short>.))(?P<rest>.+)", re.DOTALL)
_PID_NUMBERS = {ord("g"): 9, ord("X"): 12}
_PID_IDS, _PID_SERIALS = 1 << 15, 1 << 13
"""Erlang before 26 takes only smaller ids and serials for its own pids; later versions take and make 32-bit numbers."""
Family = tuple[bytes, bool]
"""The bytes that name the Erlang node in a pid, and True if every Erlang version accepts the pid's numbers."""


def family_of(address: str) -> Family | None:
    """Return the family of a direct reply-to address; None if RabbitMQ cannot have made the address."""
    match = _ADDRESS.fullmatch(address.removeprefix(DIRECT_PREFIX))
    try:
        raw = b64decode(match["pid"], validate=True) if match else b""
    except ValueError:
        return None
    pid = _PID.fullmatch(raw)
    if pid is None:
        return None
    length = int.from_bytes(pid["long"] or pid["short"])
    node, numbers = pid["rest"][:length], pid["rest"][length:]
    if b"@" not in node or len(numbers) != _PID_NUMBERS[raw[1]]:
        return None
    small = int.from_bytes(numbers[:4]) < _PID_IDS and int.from_bytes(numbers[4:8]) < _PID_SERIALS
    return raw[: -len(numbers)], small


class Recent(dict[object, float]):
    """The names added last, each with its time; their number is bounded, because senders choose the names."""

    def add(self, name: object) -> None:
        self.pop(name, None)
        self[name] = time.monotonic()
        if len(self) > MOST_REMEMBERED:
            del self[next(iter(self))]


class ReplyAddresses:
    """The addresses and families that worked, and those over which the broker has closed a connection."""

    def __init__(self) -> None:
        self.proven, self.known, self.refused = Recent(), Recent(), Recent()
        """Addresses that worked, families of which one worked, and refused addresses and families."""
        self._erlang = False
        """True if this broker's own addresses have RabbitMQ's form; the embedded broker's have another."""

    def learn_own(self, address: str) -> None:
        """Note an address that this broker has made for us."""
        family = family_of(address)
        self.known.add(family)
        self._erlang = family is not None

    def worked(self, address: str, family: Family | None) -> None:
        self.proven.add(address)
        self.known.add(family)

    def closed_a_connection(self, address: str, family: Family | None) -> None:
        self.refused.add(address)
        if family in self.known:
            # Its node may have left the cluster. The family's next address, tried after those of known families,
            # decides.
            del self.known[family]
        else:
            self.refused.add(family)

    def distrust_all(self) -> None:
        """A node has left the cluster, so its addresses close connections like made-up ones: try all of them again."""
        self.proven.clear()
        self.known.clear()

    def objection(self, address: str, family: Family | None) -> str:
        """Return the reason not to try an address; an empty string if it may be tried."""
        banned = time.monotonic() - self.refused.get(family, float("-inf")) < BANNED_SECONDS
        if address in self.refused or (banned and family not in self.known):
            return "the broker closed the connection over it, or over another like it"
        return "RabbitMQ makes no such address" if family is None and self._erlang else ""
