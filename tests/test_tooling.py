"""The tests' own tools: what they start they end, and what they cannot have they say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tooling import lanes

ROOT = Path(__file__).parents[1]
ONE_TEST = "def test_it(amqp): amqp.queue_declare('q', durable=True)\n"
A_LEAK = "def test_it(broker, services): broker.management.create_vhost(services.unique())\n"


def run_pytest(folder: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_made_up.py").write_text(text)
    return subprocess.run(command(folder), env=os.environ | env, cwd=ROOT, capture_output=True, text=True, check=False)


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-c", "pyproject.toml", str(folder)]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("broker")
def test_a_test_run_that_leaves_a_virtual_host_behind_fails(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, A_LEAK)

    assert run.returncode == 1, run.stdout + run.stderr
    assert "LEFT BEHIND: the virtual host test-rmq" in run.stdout


def test_a_missing_service_is_reported_in_the_summary(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, ONE_TEST, RMQ_TEST_URL="amqp://127.0.0.1:1/%2F", RMQ_TEST_REQUIRE="")

    assert run.returncode == 0, run.stdout + run.stderr
    assert "NOT TESTED (1)" in run.stdout


def test_a_missing_service_fails_where_all_are_required(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, ONE_TEST, RMQ_TEST_URL="amqp://127.0.0.1:1/%2F", RMQ_TEST_REQUIRE="all")

    assert run.returncode == 1, run.stdout + run.stderr
    assert "RMQ_TEST_REQUIRE=all" in run.stdout


def test_each_database_test_is_in_a_file_with_the_database_mark(request: pytest.FixtureRequest) -> None:
    """The lanes of databases read these files only."""
    found = {str(one.path.relative_to(ROOT)) for one in request.session.items if one.get_closest_marker("database")}

    assert found - set(lanes.marked("database")) == set()
