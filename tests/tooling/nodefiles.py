"""The configuration files and the environment of a private node."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.tooling.installs import Install

# a test machine has few cores: no busy waiting
SCHEDULERS = "+S 2:2 +SDio 4 +A 4 +sbwt none +sbwtdcpu none +sbwtdio none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of a node, all on 127.0.0.1."""

    amqp: int
    http: int
    dist: int
    epmd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The shared parts of a cluster: a cookie, and an epmd that outlives each node."""

    epmd: int
    cookie: str


def configuration(ports: Ports, extra: Sequence[str]) -> str:
    """Return the text of rabbitmq.conf."""
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{ports.amqp}",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {ports.http}",
        "collect_statistics_interval = 500",
        "disk_free_limit.absolute = 50MB",
        "raft.wal_max_size_bytes = 64000000",
        *extra,
    ]
    return "\n".join(lines) + "\n"


def environment(folder: Path, ports: Ports) -> dict[str, str]:
    """Return the environment of the node and its rabbitmqctl; `folder` is their path."""
    return {
        "PATH": "/usr/lib/rabbitmq/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_CRASH_DUMP": f"{folder}/erl_crash.dump",
        "RABBITMQ_NODENAME": f"test{ports.amqp}@localhost",
        "RABBITMQ_DIST_PORT": str(ports.dist),
        "RABBITMQ_CONF_ENV_FILE": f"{folder}/rabbitmq-env.conf",
        "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
        "RABBITMQ_CONFIG_FILES": f"{folder}/conf.d/*.conf",
        "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
        "RABBITMQ_MNESIA_BASE": f"{folder}/db",
        "RABBITMQ_LOG_BASE": f"{folder}/log",
        "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/gen",
        "RABBITMQ_PID_FILE": f"{folder}/beam.pid",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {SCHEDULERS}",
        "RABBITMQ_CTL_ERL_ARGS": "+S 1:1",
        "RUNNING_UNDER_SYSTEMD": "true",  # the start script then execs: the pid stays the same
    }


def epmd(install: Install, folder: Path, port: int) -> list[str]:
    """Return the command line of Erlang's port mapper."""
    return install.command(folder, "epmd", "-address", "127.0.0.1", "-port", str(port))


def write_files(
    folder: Path, install: Install, ports: Ports, *, owner: int, conf: Sequence[str], family: Family | None = None
) -> None:
    """Write the files of a node, and the facts that the guard and other processes need."""
    for name in ("db", "log", "gen", "conf.d"):
        (folder / name).mkdir(parents=True)
    (folder / "rabbitmq.conf").write_text(configuration(ports, conf))
    (folder / "rabbitmq-env.conf").touch()
    (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
    cookie = folder / ".erlang.cookie"
    cookie.write_text(family.cookie if family else f"{random.getrandbits(128):032x}")
    cookie.chmod(0o400)
    told = {
        "install": {key: str(value) for key, value in asdict(install).items()},
        "ports": asdict(ports),
        "owner": owner,
        "env": environment(install.inner(folder), ports),
        "epmd": [] if family else epmd(install, folder, ports.epmd),
        "server": install.command(folder, f"{install.home}/sbin/rabbitmq-server"),
    }
    (folder / "node.json").write_text(json.dumps(told))
