"""Debian's promtool, which checks and tests alert rules and queries."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.tooling.apt import install_stopped, may_install

PACKAGE = "prometheus"


def provide_promtool() -> str:
    """Install promtool where possible; return a sentence about it."""
    if no_promtool() and may_install():
        print(f"Alert rules: installing {PACKAGE} by apt-get, its service stays off", flush=True)
        install_stopped(PACKAGE)
    return f"Alert rules: {no_promtool() or 'promtool is there.'}"


def no_promtool() -> str | None:
    """Return the reason why no rule can be tested, or None."""
    return None if shutil.which("promtool") else f"promtool is not installed: apt-get install {PACKAGE}."


def promtool(*words: str | Path) -> str:
    """Run promtool; return its output if it finds something wrong, or ""."""
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def wrong_queries(queries: Sequence[str]) -> str:
    """Return promtool's findings about queries, or ""."""
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queries.yml"
        # JSON is YAML.
        path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
        return promtool("check", "rules", path)
