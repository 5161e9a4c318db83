"""Clients that are not Python packages: Debian's amqp-tools, and node's amqplib in this user's cache."""

import shutil
import subprocess
from pathlib import Path

from tests.tooling.apt import install, may_install, wanted
from tests.tooling.installs import cache

AMQPLIB = "2.3.1"
PACKAGES = {"amqp-publish": "amqp-tools", "node": "nodejs", "npm": "npm"}


def provide_clients() -> str:
    """Install missing clients where possible; return a sentence about what the tests will use."""
    missing = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if missing and may_install():
        print(f"Clients: installing {', '.join(missing)} by apt-get", flush=True)
        install(*missing)
    if amqplib() is None and wanted() and shutil.which("npm"):
        get_amqplib()
    lacks = [lack for lack in (no_tools(), no_amqplib()) if lack]
    return " ".join(["Clients:", *(lacks or ["amqp-tools and node's amqplib are there."])])


def no_tools() -> str | None:
    """Return the reason why the C tools cannot run, or None."""
    return None if shutil.which("amqp-publish") else "amqp-tools is not installed: apt-get install amqp-tools."


def no_amqplib() -> str | None:
    """Return the reason why node's amqplib cannot run, or None."""
    if shutil.which("node") is None:
        return "node is not installed: apt-get install nodejs npm, then `make services`."
    return None if amqplib() else "node's amqplib is not here: `make services` gets it by npm."


def amqplib() -> Path | None:
    """The folder where node finds amqplib."""
    place = _place()
    return place if (place / "node_modules" / "amqplib" / "package.json").exists() else None


def get_amqplib() -> None:
    """Fetch amqplib with npm, completely or not at all."""
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
