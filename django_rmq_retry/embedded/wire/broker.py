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
    """The state that all connections share."""

    def __init__(self, behaviour: Behaviour = V4_0, *, file: Path | None = None) -> None:
        now = time.monotonic()
        self.behaviour = behaviour
        self.clock = Clock(now, epoch=time.time() - now)
        self._store = FileStore(file, epoch=self.clock.epoch) if file is not None else None
        vhost = Vhost("/", self.clock, behaviour, chance=_chance, store=self._store)
        self.vhosts = {vhost.name: vhost}
        self._writers: dict[Outbox, Callable[[], None]] = {}
        if self._store is not None:
            restore(vhost, self._store.read())

    def connect(self, vhost: str, user: str, write_events: Callable[[], None]) -> Session | None:
        """Open a session on a virtual host, or or return None; `write_events` is called when it has events."""
        found = self.vhosts.get(vhost)
        if found is None:
            return None
        session = found.connect(user)
        session.valve.most = MUCH
        self._writers[session] = write_events
        return session

    def disconnect(self, session: Session) -> None:
        del self._writers[session]
        session.close()

    @property
    def has_events(self) -> bool:
        return any(vhost.busy for vhost in self.vhosts.values())

    def write_events(self) -> None:
        """Write the events of every client that has any."""
        for vhost in self.vhosts.values():
            for session in list(vhost.busy):
                writer = self._writers.get(session)
                if writer is None:
                    session.drain()
                else:
                    writer()

    def commit(self) -> None:
        """Write every change to the file; no client may see a confirm before that."""
        if self._store is not None:
            self._store.commit()

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            try:
                self._store.commit()
            finally:
                self._store.close()


def _chance() -> str:
    return token_urlsafe(16)
