"""The messages that version 1 left in flight, byte for byte."""

import base64
import json
from pathlib import Path

from django_rmq_retry import Delivery

GOLDEN = Path(__file__).parent / "golden" / "version-1.json"
FLIGHTS: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())


def properties(name: str) -> bytes:
    return base64.b64decode(FLIGHTS[name]["properties"])


def landed(name: str, queue: str) -> Delivery:
    """As the broker delivers it in that queue, by the default exchange."""
    flight = FLIGHTS[name]
    body = base64.b64decode(flight["body"])
    return Delivery(queue=queue, body=body, raw=properties(name), exchange="", routing_key=queue)
