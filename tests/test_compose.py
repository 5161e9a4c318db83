"""The file compose.yaml: its commands exist, and its services run with the environment that it gives them.

Containers are not started. The same commands run as processes, on a RabbitMQ and a PostgreSQL of the tests' own.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import yaml

from tests.tooling import servers
from tests.tooling.databases import KINDS, POSTGRESQL
from tests.tooling.node import free_ports
from tests.tooling.pages import ROOT
from tests.tooling.services import Unavailable, go_without
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.nightly
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
MANAGE = ["python", "testproject/manage.py"]
PLAIN = {name: service for name, service in SERVICES.items() if "profiles" not in service}
MONITORING = {name: service for name, service in SERVICES.items() if service.get("profiles") == ["monitoring"]}
PROMETHEUS = yaml.safe_load((ROOT / "docs" / "monitoring" / "prometheus.yml").read_text())


def commands(service: str) -> list[list[str]]:
    """The command lines of a service; those of a shell are run one after the other."""
    words: list[str] = SERVICES[service]["command"]
    return [shlex.split(line) for line in words[2].split("&&")] if words[:2] == ["sh", "-c"] else [words]


def check_of(service: str) -> list[str]:
    """The command of a service's health check, as the container would run it."""
    kind, *words = SERVICES[service]["healthcheck"]["test"]
    words = [word.replace("$$", "$") for word in words]
    return ["sh", "-c", *words] if kind == "CMD-SHELL" else words


def test_each_service_waits_for_what_it_needs() -> None:
    waits = {
        name: {to: how["condition"] for to, how in one.get("depends_on", {}).items()} for name, one in PLAIN.items()
    }

    assert waits["setup"] == {"rabbitmq": "service_healthy", "postgres": "service_healthy"}
    assert {name for name in OURS if name != "setup"} == {"web", "consumer"}
    assert all(waits[name] == {"setup": "service_completed_successfully"} for name in ("web", "consumer"))
    assert all("healthcheck" in one for name, one in PLAIN.items() if name != "setup")
    assert SERVICES["consumer"]["deploy"] == {"replicas": 2}


def test_the_compose_ports_are_bound_to_localhost() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", [])]

    assert len(ports) == 5
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_compose_images_have_supported_versions() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    supported = (ROOT / "README.md").read_text() + (ROOT / "docs" / "start" / "install.md").read_text()
    python = (ROOT / "testproject" / "Dockerfile").read_text().partition("FROM python:")[2].partition("-")[0]
    rabbitmq = SERVICES["rabbitmq"]["image"].partition(":")[2].partition("-")[0]

    assert f"Programming Language :: Python :: {python}" in project
    assert rabbitmq in supported
    assert SERVICES["rabbitmq"]["image"].endswith("-management")


def test_a_plain_start_runs_no_monitoring_service() -> None:
    assert set(MONITORING) == {"prometheus", "grafana", "jaeger"}
    assert set(PLAIN) == {"rabbitmq", "postgres", "setup", "web", "consumer"}
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", one["image"]) for one in MONITORING.values())


def test_prometheus_scrapes_the_address_on_which_consumers_serve_metrics() -> None:
    [words] = commands("consumer")
    [job] = PROMETHEUS["scrape_configs"]
    [names] = job["dns_sd_configs"]

    assert words[words.index("--http") + 1] == f"0.0.0.0:{names['port']}"
    assert names["names"] == ["consumer"]
    assert "ports" not in SERVICES["consumer"], "two replicas cannot have one port of the host"


def test_the_monitoring_services_mount_files_that_exist() -> None:
    mounts = [mount.split(":") for one in MONITORING.values() for mount in one.get("volumes", [])]
    targets = {Path(target) for _source, target, _mode in mounts}

    assert [source for source, _target, _mode in mounts if not (ROOT / source).is_file()] == []
    assert {mode for *_names, mode in mounts} == {"ro"}
    assert targets >= {Path("/etc/prometheus") / name for name in PROMETHEUS["rule_files"]}


def test_the_image_is_built_from_files_that_exist() -> None:
    lines = (ROOT / SERVICES["web"]["build"]["dockerfile"]).read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]

    assert "django_rmq_retry" in copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.fixture
def environment(vhost: Vhost, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of compose.yaml, with other addresses, and the role and the database of its PostgreSQL."""
    kind, given = KINDS[POSTGRESQL], SERVICES["web"]["environment"]
    if kind.undriven() or not servers.SERVERS[POSTGRESQL].programs:
        go_without(Unavailable(None, kind.undriven() or "PostgreSQL is not installed. Run `make services`."))
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RMQ_", "BANK_", "DATABASE_", "DJANGO_"))
    }
    with ExitStack() as stack:
        parts = urlsplit(stack.enter_context(servers.private(POSTGRESQL)))
        psycopg = import_module("psycopg")
        with psycopg.connect(
            host=parts.hostname, port=parts.port, user=parts.username, dbname="postgres", autocommit=True
        ) as one:
            one.execute("CREATE ROLE bank LOGIN")
            one.execute("CREATE DATABASE bank OWNER bank")
        address = f"@{parts.hostname}:{parts.port}/"
        yield own | given | {
            "DATABASE_URL": replaced(given["DATABASE_URL"], "@postgres:5432/", address),
            "RMQ_URL": vhost.url,
            "RMQ_OPERATORS_MANAGEMENT_URL": vhost.management.url,
            "TMPDIR": str(tmp_path),
        }  # fmt: skip


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def local(words: list[str], folder: Path, port: int) -> list[str]:
    """The same command with this interpreter, a folder of the test and free ports."""
    given = [sys.executable if word == "python" else word for word in words]
    given = [word.replace("/tmp/consumer", str(folder / "consumer")) for word in given]  # noqa: S108 - in the container
    given = [f"127.0.0.1:{free_ports(1)[0]}" if word == "0.0.0.0:9464" else word for word in given]
    return [
        word.replace("0.0.0.0:8000", f"127.0.0.1:{port}").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        for word in given
    ]


def scrape(words: list[str]) -> str:
    """Read the metrics of a consumer as Prometheus does."""
    with urlopen(f"http://{words[words.index('--http') + 1]}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The services as processes of this machine."""

    environment: dict[str, str]
    folder: Path
    port: int

    def run(self, words: list[str], service: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a command of a service to its end."""
        words = local(words, self.folder / service, self.port)
        return subprocess.run(words, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)

    def healthy(self, service: str, place: str) -> bool:
        return self.run(check_of(service), place).returncode == 0

    def postgres_is_healthy(self) -> bool:
        """Run the health check of PostgreSQL at this server's port, with the program of its version."""
        program, *words = check_of("postgres")
        path = Path(servers.SERVERS[POSTGRESQL].programs["initdb"]).with_name(program)
        port = urlsplit(self.environment["DATABASE_URL"]).port
        return self.run([str(path), *words, "--port", str(port)]).returncode == 0

    @contextmanager
    def running(self, service: str, place: str) -> Iterator[list[str]]:
        """Start a service, wait until it is healthy, and stop it as Docker does; yield its command."""
        [words] = commands(service)
        folder = self.folder / place
        folder.mkdir()
        log = folder / "log"
        with log.open("w") as out:
            words = local(words, folder, self.port)
            process = subprocess.Popen(words, cwd=ROOT, env=self.environment, stdout=out, stderr=out)
            try:
                wait_until(lambda: process.poll() is not None or self.healthy(service, place), timeout=60, step=0.5)
                assert process.poll() is None, log.read_text()
                yield words
            finally:
                process.terminate()
                process.wait(40)


@pytest.mark.slow
def test_the_compose_services_start_and_are_healthy(environment: dict[str, str], tmp_path: Path, vhost: Vhost) -> None:
    stack = Stack(environment=environment, folder=tmp_path, port=free_ports(1)[0])
    for words in commands("setup"):
        done = stack.run(words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert stack.postgres_is_healthy()

    with stack.running("web", "web"), stack.running("consumer", "one") as one, stack.running("consumer", "two") as two:
        wait_until(lambda: vhost.queues()["payments.charge"].get("consumers") == 2, what="two consumers")
        metrics = [scrape(words) for words in (one, two)]
        status = stack.run([*MANAGE, "rmq_status", "--check"])
        shown = stack.run([*MANAGE, "rmq_status"]).stdout

    assert status.returncode == 0, status.stdout + status.stderr
    assert "default postgresql" in shown
    assert f"(RabbitMQ {vhost.version})" in shown
    assert "not visible" not in shown, "the management API is not used"
    assert all("rmq_retry_processes_ready 1\n" in text for text in metrics)
    # A consumer removes its liveness file when it exits normally.
    assert not stack.healthy("web", "web")
    assert not stack.healthy("consumer", "one")
    assert not stack.healthy("consumer", "two")
