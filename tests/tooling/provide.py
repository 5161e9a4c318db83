"""Says which RabbitMQ the tests will use; where there is none, root on a Debian gets one.

RMQ_TEST_INSTALL=never keeps it from that.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.tooling.installs import install_for
from tests.tooling.services import DEFAULT, Broker, Unavailable, named_broker

# Debian's packages ask this script before they start a service: the tests start their own nodes
POLICY = Path("/usr/sbin/policy-rc.d")


def provide() -> str:
    """What the tests will find, as a sentence."""
    if os.environ.get("RMQ_TEST_URL"):
        return "RabbitMQ: the one that RMQ_TEST_URL names."
    if install_for(None) is None and service() is None and may_install():
        install()
    found = install_for(None)
    if found:
        return f"RabbitMQ: private nodes of {found.version}."
    if service():
        return "RabbitMQ: the one on 127.0.0.1:5672, in virtual hosts of the tests' own."
    return "RabbitMQ: none. Install rabbitmq-server or set RMQ_TEST_URL; without it most of the product is not tested."


def service() -> Broker | None:
    """The RabbitMQ that runs on this machine, if the tests may make virtual hosts there."""
    with suppress(Unavailable):
        return named_broker(DEFAULT)
    return None


def may_install() -> bool:
    """Whether this is root on a machine with apt-get, and nobody minds."""
    wanted = os.environ.get("RMQ_TEST_INSTALL") != "never"
    return wanted and os.geteuid() == 0 and shutil.which("apt-get") is not None


def install() -> None:
    """Install rabbitmq-server without starting its service."""
    print("RabbitMQ: installing rabbitmq-server by apt-get, its service stays off", flush=True)
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        apt("update")
        apt("install", "--yes", "--no-install-recommends", "rabbitmq-server")
    finally:
        if ours:
            POLICY.unlink()


def apt(*words: str) -> None:
    """One quiet apt-get; its failure is told, and the tests then say what is missing."""
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", "-qq", *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"apt-get {' '.join(words)} failed: {done.stderr[-1000:]}", flush=True)


if __name__ == "__main__":
    print(provide(), flush=True)
