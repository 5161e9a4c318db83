"""The metrics of the consumers at rest, compared with what their handlers wrote to the ledger."""

import time
from collections import Counter
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.ledger import BEGAN, DID, names
from tests.chaos.naming import lane_of
from tests.chaos.stage import Stage

DIRECT = build_opener(ProxyHandler({}))
FLUSH = 10.0
"""Seconds within which the numbers must agree: a process counts its successes each half second."""
NOTED = {DID: ("flood", "line", "fragile", "gated", "metered"), BEGAN: ("fragile", "gated", "metered")}
"""The lanes in which the ledger has a line for each success, and for each attempt."""


def miscounted(stage: Stage) -> tuple[int, list[str]]:
    """Return how many successes and attempts were compared, and a sentence for each number that differs.

    A process is compared with its own lines since its start: its metrics end with it.
    """
    compared, wrong = 0, []
    for actor in stage.fleet.of("consumer"):
        if actor.pid is None:
            wrong.append(f"{actor.role.name} does not run")
            continue
        deadline = time.monotonic() + FLUSH
        while True:
            noted, counted = noted_by(stage, f"{actor.role.name}.{actor.pid}"), scraped(actor.role.port)
            if noted == counted or time.monotonic() > deadline:
                break
            stage.rest(0.3)
        compared += sum(noted.values())
        wrong += [
            f"{actor.role.name}, {lane}: {counted[word, lane]} are counted, {noted[word, lane]} are {word}"
            for word, lane in sorted(noted.keys() | counted.keys())
            if noted[word, lane] != counted[word, lane]
        ]
    return compared, wrong if compared else [*wrong, "nothing was compared"]


def noted_by(stage: Stage, writer: str) -> Counter[tuple[str, str]]:
    """Return the numbers of successes and attempts that one process noted, by word and lane."""
    return Counter(
        (word, lane)
        for word, lanes in NOTED.items()
        for lane in map(lane_of, names(stage.folder, word, writer))
        if lane in lanes
    )


def scraped(port: int) -> Counter[tuple[str, str]]:
    """Return the same numbers from the metrics of a process; nothing if it does not answer."""
    try:
        with DIRECT.open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (OSError, HTTPException):
        return Counter()
    found: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            lane = sample.labels.get("queue", "").removeprefix("chaos.")
            if sample.name == "rmq_retry_attempts_total" and sample.labels["verdict"] == "ack" and lane in NOTED[DID]:
                found[DID, lane] += int(sample.value)
            elif sample.name == "rmq_retry_handler_seconds_count" and lane in NOTED[BEGAN]:
                found[BEGAN, lane] += int(sample.value)
    return Counter({key: count for key, count in found.items() if count})
