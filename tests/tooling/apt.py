"""Debian packages, installed as root on a disposable machine; RMQ_TEST_INSTALL=never prevents it."""

import os
import shutil
import subprocess
from pathlib import Path

# Debian's packages run this script before they start a service; the tests start their own servers.
POLICY = Path("/usr/sbin/policy-rc.d")


def may_install() -> bool:
    """True for root on a machine with apt-get, unless the environment forbids it."""
    return wanted() and os.geteuid() == 0 and shutil.which("apt-get") is not None


def wanted() -> bool:
    """True if installing is allowed."""
    return os.environ.get("RMQ_TEST_INSTALL") != "never"


def install(*packages: str) -> None:
    """Install quietly; on a failure the tests name what is missing."""
    apt("update")
    apt("install", "--yes", "--no-install-recommends", *packages)


def install_stopped(*packages: str) -> None:
    """Install without starting a service."""
    ours = not POLICY.exists()
    if ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        install(*packages)
    finally:
        if ours:
            POLICY.unlink()


def apt(*words: str) -> None:
    """Run apt-get quietly."""
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", "-qq", *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"apt-get {' '.join(words)} failed: {done.stderr[-1000:]}", flush=True)
