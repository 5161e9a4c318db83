"""Reports which services and tools the tests will use: RabbitMQ, databases, clients, browser, promtool.

Root on Debian installs missing ones; RMQ_TEST_INSTALL=never prevents it. The exit code is 1 if RMQ_TEST_REQUIRE=all and
no RabbitMQ can be used: each test that needs one would fail for the same reason.
"""

import os
import sys

from tests.tooling import apt
from tests.tooling.browser import provide_browser
from tests.tooling.clients import provide_clients
from tests.tooling.installs import install_for
from tests.tooling.node import shakes_hands
from tests.tooling.promtool import provide_promtool
from tests.tooling.servers import provide_databases
from tests.tooling.services import DEFAULT, Unavailable, named_broker


def provide() -> str:
    """Return a sentence about the RabbitMQ of the tests; exit if there is none and all services are required."""
    named = os.environ.get("RMQ_TEST_URL")
    lack = "" if install_for(None) and not named else service(named or DEFAULT)
    if lack and not named and apt.may_install():
        install()
    found = install_for(None)
    if found and not named:
        return f"RabbitMQ: private nodes of {found.version}."
    if lack and os.environ.get("RMQ_TEST_REQUIRE") == "all":
        sys.exit(f"RabbitMQ: none, and RMQ_TEST_REQUIRE=all. {lack}")
    if lack:
        return f"RabbitMQ: none; the tests that need a real one are skipped. {lack}"
    if named:
        return "RabbitMQ: the one that RMQ_TEST_URL names."
    return "RabbitMQ: the one on 127.0.0.1:5672, in virtual hosts of the tests' own."


def service(url: str) -> str:
    """Return why no RabbitMQ at this address lets the tests create virtual hosts; empty if one does."""
    if url == DEFAULT and not shakes_hands(5672):
        return "Install rabbitmq-server or set RMQ_TEST_URL."
    try:
        named_broker(url)
    except Unavailable as lack:
        return str(lack)
    return ""


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
