"""The whole test run: its services' folder, a check that no service stays, and a summary of skipped tests."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.tooling.services import MARK, SERVICES, Services

LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Take the run's folder from the controlling process, or create it in that process."""
    given = getattr(config, "workerinput", {}).get("rmq_services")
    folder, owner = given or (tempfile.mkdtemp(prefix="rmq"), os.getpid())
    config.stash[SERVICES] = Services(folder=Path(folder), owner=owner)
    gc.disable()  # until the tests are collected
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored, which the processes of tests would inherit.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the services' folder to each worker of xdist."""
    services = node.config.stash[SERVICES]
    node.workerinput["rmq_services"] = (str(services.folder), services.owner)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test marked `contract` once for each broker in RMQ_TEST_BROKERS, and `on_both` on the embedded one too.

    The embedded broker emulates no RabbitMQ 3. `on_both(embedded=…)` or `on_both(rabbitmq=…)` gives that run a mark.
    """
    marker, names = metafunc.definition.get_closest_marker, metafunc.fixturenames
    on_both = marker("on_both")
    both = on_both is not None and "broker_kind" in names
    versions = [name for name in os.environ.get("RMQ_TEST_BROKERS", "").split(",") if name]
    if not (versions and marker("contract") and "broker_version" in names):
        if on_both and both:
            kinds = ("rabbitmq", "embedded")
            metafunc.parametrize(
                "broker_kind", [pytest.param(kind, marks=on_both.kwargs.get(kind, ())) for kind in kinds]
            )
        return
    runs = [("rabbitmq", name) for name in versions]
    if both:
        runs += [("embedded", name) for name in versions if not name.startswith("3.")]
    ids = [f"{kind}-{name}" for kind, name in runs]
    if both:
        metafunc.parametrize(("broker_kind", "broker_version"), runs, ids=ids)
    else:
        metafunc.parametrize("broker_version", versions, ids=ids)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude collected tests and their modules from garbage collection: a full one would cost more than most tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the services after the last worker; a run that leaves something behind fails."""
    services = session.config.stash[SERVICES]
    if services.owner != os.getpid():
        return
    left = session.config.stash[LEFT] = services.close()
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Do the same for a run that ended before its start."""
    services = config.stash[SERVICES]
    if services.owner == os.getpid():
        services.close()
        shutil.rmtree(services.folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell how many tests did not run and why (their names with -v), and everything left behind."""
    by_reason: dict[str, list[str]] = {}
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if MARK in reason:
            by_reason.setdefault(reason.partition(MARK)[2], []).append(report.nodeid)
    for reason, tests in by_reason.items():
        terminalreporter.section(f"NOT TESTED ({len(tests)})", sep="!", red=True, bold=True)
        terminalreporter.line(reason, red=True)
        for test in sorted(tests) if config.get_verbosity() > 0 else []:
            terminalreporter.line(f"  {test}")
    for sentence in config.stash.get(LEFT, []):
        terminalreporter.line(f"LEFT BEHIND: {sentence}", red=True, bold=True)
