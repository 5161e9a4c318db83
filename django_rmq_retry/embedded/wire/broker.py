"""The virtual hosts of one embedded broker, one clock for all, and who is connected; no sockets here."""

import time
from collections.abc import Callable
from secrets import token_urlsafe

from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.host import Outbox
from django_rmq_retry.embedded.engine.vhost import Session, Vhost


class Broker:
    """What all connections share."""

    def __init__(self, behaviour: Behaviour = V4_0, *, vhosts: tuple[str, ...] = ("/",)) -> None:
        now = time.monotonic()
        self.behaviour = behaviour
        self.clock = Clock(now, epoch=time.time() - now)
        self.vhosts = {name: Vhost(name, self.clock, behaviour, chance=_chance) for name in vhosts}
        self._tellers: dict[Outbox, Callable[[], None]] = {}

    def connect(self, vhost: str, user: str, tell: Callable[[], None]) -> Session | None:
        """A session on a virtual host, if there is such a one; `tell` is called when it has news."""
        found = self.vhosts.get(vhost)
        if found is None:
            return None
        session = found.connect(user)
        self._tellers[session] = tell
        return session

    def disconnect(self, session: Session) -> None:
        del self._tellers[session]
        session.close()

    @property
    def has_news(self) -> bool:
        return any(vhost.busy for vhost in self.vhosts.values())

    def tell(self) -> None:
        """Have every client that has news take it."""
        for vhost in self.vhosts.values():
            for session in list(vhost.busy):
                teller = self._tellers.get(session)
                if teller is None:
                    session.drain()
                else:
                    teller()


def _chance() -> str:
    return token_urlsafe(16)
