"""One way to talk to two brokers: what a semantics test may do, and what it gets."""

from tests.embedded.answers import BOTH, CLASSIC, QUORUM, Arrival, Refusal
from tests.embedded.engine_rig import EngineClient, EngineRig
from tests.embedded.rabbit_rig import RabbitClient, RabbitRig

Rig = EngineRig | RabbitRig
"""A broker with an empty virtual host."""
Client = EngineClient | RabbitClient
"""A connection with one channel that has publisher confirms."""

__all__ = ["BOTH", "CLASSIC", "QUORUM", "Arrival", "Client", "Refusal", "Rig"]
