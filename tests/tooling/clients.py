"""The clients that are no Python packages: Debian's amqp-tools, and node's amqplib in a cache of this user."""

import shutil
import subprocess
from pathlib import Path

from tests.tooling.apt import install, may_install, wanted
from tests.tooling.installs import cache

AMQPLIB = "2.3.1"
PACKAGES = {"amqp-publish": "amqp-tools", "node": "nodejs", "npm": "npm"}


def provide_clients() -> str:
    """Get what is missing, as far as this machine allows; what the tests will find, as a sentence."""
    missing = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if missing and may_install():
        print(f"Clients: installing {', '.join(missing)} by apt-get", flush=True)
        install(*missing)
    if amqplib() is None and wanted() and shutil.which("npm"):
        get_amqplib()
    lacks = [lack for lack in (no_tools(), no_amqplib()) if lack]
    return " ".join(["Clients:", *(lacks or ["amqp-tools and node's amqplib are there."])])


def no_tools() -> str | None:
    """Why the tools in C cannot be driven."""
    return None if shutil.which("amqp-publish") else "amqp-tools is not installed: apt-get install amqp-tools."


def no_amqplib() -> str | None:
    """Why node's amqplib cannot be driven."""
    if shutil.which("node") is None:
        return "node is not installed: apt-get install nodejs npm, then `make services`."
    return None if amqplib() else "node's amqplib is not here: `make services` gets it by npm."


def amqplib() -> Path | None:
    """The folder in which node finds amqplib."""
    place = _place()
    return place if (place / "node_modules" / "amqplib" / "package.json").exists() else None


def get_amqplib() -> None:
    """Fetch it by npm, as a whole or not at all."""
    place = _place()
    building = place.with_name(f".building-{place.name}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", f"amqplib@{AMQPLIB}"]
    done = subprocess.run([*words, "--prefix", str(building)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"npm could not fetch amqplib {AMQPLIB}: {(done.stderr or done.stdout)[-1000:]}", flush=True)
        return
    shutil.rmtree(place, ignore_errors=True)
    building.rename(place)


def _place() -> Path:
    return cache() / f"amqplib-{AMQPLIB}"
