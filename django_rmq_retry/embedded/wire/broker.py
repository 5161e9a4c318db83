"""The virtual hosts, clock, file and clients of one embedded broker."""

import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_urlsafe

from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.consumers import MUCH
from django_rmq_retry.embedded.engine.host import Outbox
from django_rmq_retry.embedded.engine.vhost import Session, Vhost, restore
from django_rmq_retry.embedded.file_store import FileStore


class Broker:
    """What all connections share."""

    def __init__(self, behaviour: Behaviour = V4_0, *, file: Path | None = None) -> None:
        now = time.monotonic()
        self.behaviour = behaviour
        self.clock = Clock(now, epoch=time.time() - now)
        self._store = FileStore(file, epoch=self.clock.epoch) if file is not None else None
        vhost = Vhost("/", self.clock, behaviour, chance=_chance, store=self._store)
        self.vhosts = {vhost.name: vhost}
        self._tellers: dict[Outbox, Callable[[], None]] = {}
        if self._store is not None:
            restore(vhost, self._store.read())

    def connect(self, vhost: str, user: str, tell: Callable[[], None]) -> Session | None:
        """A session on a virtual host, if there is such a one; `tell` is called when it has news."""
        found = self.vhosts.get(vhost)
        if found is None:
            return None
        session = found.connect(user)
        session.valve.most = MUCH
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

    def commit(self) -> None:
        """Have the file hold all that has happened; before that, nobody may be told of it."""
        if self._store is not None:
            self._store.commit()

    def close(self) -> None:
        """Let go of the file."""
        if self._store is not None:
            try:
                self._store.commit()
            finally:
                self._store.close()


def _chance() -> str:
    return token_urlsafe(16)
