"""The metrics that ``rmq_consume --http`` prints, and the names in queries."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pika
import yaml

from tests.bank.bank import MANAGE, environment, manage
from tests.embedded.served import served
from tests.tooling import processes
from tests.tooling.node import free_ports
from tests.tooling.pages import DOCS, blocks, page
from tests.tooling.waiting import wait_until

FOLDER = DOCS / "monitoring"
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
KEDA: dict[str, Any] = yaml.safe_load((FOLDER / "keda.yaml").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
OF_TARGETS = frozenset({"job", "instance"})
"""The labels that Prometheus itself adds."""

SAMPLE = re.compile(r"(?P<name>\w+?)(?P<part>_bucket|_sum|_count)?(\{(?P<labels>.*)\})? \S+")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SELECTED = re.compile(r"\b(rmq_retry_\w+)(\{[^}]*\})?")
MATCHED = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
EXAMPLE = """
import django
django.setup()
{block}
from prometheus_client import generate_latest
print(generate_latest(REGISTRY).decode())
"""
VARIABLES = {"$job": ".*", "$queue": ".*", "$__rate_interval": "1m"}


@dataclass(slots=True)
class Metric:
    """One metric as it was printed."""

    kind: str
    labels: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=dict)


def read(text: str) -> dict[str, Metric]:
    """Read the text format."""
    found: dict[str, Metric] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _hash, _type, name, kind = line.split()
            found[name] = Metric(kind)
        elif not line.startswith("#") and (sample := SAMPLE.fullmatch(line)):
            name = sample["name"] if sample["name"] in found else f"{sample['name']}{sample['part'] or ''}"
            for label, value in LABEL.findall(sample["labels"] or ""):
                found[name].labels.add(label)
                found[name].values.setdefault(label, set()).add(value)
    return found


class Printed(NamedTuple):
    """The metrics of a consumer, and those that the page's example adds to a web process."""

    consumer: dict[str, Metric]
    web: dict[str, Metric]


class Consuming(NamedTuple):
    """Consuming processes of the bank."""

    address: str
    env: dict[str, str]


@contextmanager
def consuming(folder: Path) -> Iterator[Consuming]:
    """Run two consuming processes of the bank, with a message that they park."""
    (port,) = free_ports(1)
    with served() as broker, (folder / "log").open("wb") as log:
        env = environment(folder / "bank.sqlite3", broker.url) | {"RMQ_RECORDS": "true"}
        manage(env, "migrate", "--verbosity", "0")
        manage(env, "rmq_declare")
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().basic_publish("", "payments.charge", b"no JSON")
        words = ["rmq_consume", "--processes", "2", "--http", str(port)]
        child = processes.start([sys.executable, str(MANAGE), *words], env=env, stdout=log, stderr=log)
        try:
            yield Consuming(f"http://127.0.0.1:{port}/metrics", env)
        finally:
            child.terminate()
            child.wait(30)


def scraped(folder: Path) -> Printed:
    """Return the metrics of consuming processes that have parked a message and read the figures."""
    with consuming(folder) as bank:
        text = wait_until(lambda: _complete(bank.address), what=f"all metrics on {bank.address}", step=0.2)
        web = processes.run([sys.executable, "-c", EXAMPLE.format(block=_example())], env=bank.env)
    assert web.returncode == 0, web.stderr
    return Printed(read(text), {name: one for name, one in read(web.stdout).items() if name.startswith("rmq_retry_")})


def _example() -> str:
    [found] = [block.text for block in blocks(page("metrics.md")) if "FiguresCollector" in block.text]
    return found


def _complete(address: str) -> str:
    try:
        with urlopen(address, timeout=5) as answer:  # noqa: S310 - the test's own consumer
            text = str(answer.read().decode())
    except OSError:
        return ""
    return text if "rmq_retry_parked_total{" in text and "rmq_retry_wanted_consumers{" in text else ""


def panels() -> list[dict[str, Any]]:
    """The panels with queries."""
    return [one for one in PANELS if one["type"] != "row"]


def queries() -> dict[str, list[str]]:
    """Each query of the monitoring files and of the page, by its place."""
    return {
        **{f"alert {one['alert']}": [one["expr"]] for one in ALERTS},
        **{f"panel {one['title']}": [filled(to["expr"]) for to in one["targets"]] for one in panels()},
        "keda.yaml": [one["metadata"]["query"] for one in KEDA["spec"]["triggers"]],
        "the pages": [
            query
            for name in ("monitoring.md", "metrics.md")
            for block in blocks(page(name))
            if block.kind == "promql"
            for query in re.sub(r"^#.*\n", "", block.text, flags=re.MULTILINE).split("\n\n")
        ],
    }


def filled(query: str) -> str:
    """Return a query of the dashboard with values for its variables."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def unknown_in(query: str, known: dict[str, Metric]) -> Iterator[str]:
    """Yield sentences about metrics, labels and values of a query that do not exist."""
    labels = set(OF_TARGETS)
    for name, braces in SELECTED.findall(query):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = known.get(base)
        if metric is None or (metric.kind == "histogram") is not (name != base):
            yield f"no metric {name}"
            continue
        labels |= metric.labels
        yield from _unmatched(name, metric, MATCHED.findall(braces))
    grouped = {label.strip() for found in GROUPED.findall(query) for label in found.split(",")}
    yield from (f"no label {label}" for label in sorted(grouped - labels))


def _unmatched(name: str, metric: Metric, matchers: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    for label, _how, value in matchers:
        if label in OF_TARGETS:
            continue
        if label not in metric.labels:
            yield f"{name} has no label {label}"
        elif value != ".*" and not set(value.split("|")) <= metric.values[label]:
            yield f"{name} has no {label} {value}"
