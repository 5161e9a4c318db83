"""Reports which services and tools the tests will use: RabbitMQ, databases, clients, browser, promtool.

Root on Debian installs missing ones; RMQ_TEST_INSTALL=never prevents it.
"""

import os
from contextlib import suppress

from tests.tooling import apt
from tests.tooling.browser import provide_browser
from tests.tooling.clients import provide_clients
from tests.tooling.installs import install_for
from tests.tooling.promtool import provide_promtool
from tests.tooling.servers import provide_databases
from tests.tooling.services import DEFAULT, Broker, Unavailable, named_broker


def provide() -> str:
    """Return a sentence about the RabbitMQ of the tests."""
    if os.environ.get("RMQ_TEST_URL"):
        return "RabbitMQ: the one that RMQ_TEST_URL names."
    if install_for(None) is None and service() is None and apt.may_install():
        install()
    found = install_for(None)
    if found:
        return f"RabbitMQ: private nodes of {found.version}."
    if service():
        return "RabbitMQ: the one on 127.0.0.1:5672, in virtual hosts of the tests' own."
    return "RabbitMQ: none; the tests that need a real one are skipped. Install rabbitmq-server or set RMQ_TEST_URL."


def service() -> Broker | None:
    """Return the RabbitMQ that runs on this machine, if the tests may create virtual hosts there."""
    with suppress(Unavailable):
        return named_broker(DEFAULT)
    return None


def install() -> None:
    """Install rabbitmq-server without starting its service."""
    print("RabbitMQ: installing rabbitmq-server by apt-get, its service stays off", flush=True)
    apt.install_stopped("rabbitmq-server")


if __name__ == "__main__":
    print(provide(), flush=True)
    print(provide_databases(), flush=True)
    print(provide_clients(), flush=True)
    print(provide_browser(), flush=True)
    print(provide_promtool(), flush=True)
