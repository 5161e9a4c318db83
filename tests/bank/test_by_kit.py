"""The bank's tests with the test kit, in a separate run of pytest, because the bank has its own settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bank.bank import ROOT, environment

CASES = Path(__file__).parent / "by_kit" / "cases.py"
AS_IT_IS = ("BANK_CHARGE_WAIT", "BANK_CASH_WAIT", "BANK_LEDGER_WAIT")


@pytest.mark.nightly
def test_the_bank_tests_its_retries_without_a_broker(tmp_path: Path) -> None:
    env = {name: value for name, value in environment(tmp_path / "bank.sqlite3").items() if name not in AS_IT_IS}
    env["RMQ_UPDATE_SNAPSHOTS"] = os.environ.get("RMQ_UPDATE_SNAPSHOTS", "")
    words = ["-q", "-n", "0", "--ds", "testproject.settings", "-p", "no:cacheprovider", str(CASES)]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )

    assert told.returncode == 0, told.stdout + told.stderr
    assert " passed" in told.stdout
    assert "skipped" not in told.stdout
