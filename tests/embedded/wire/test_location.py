"""Processes find the one broker of their project."""

import fcntl
import os
from pathlib import Path

import pytest

from django_rmq_retry.embedded import place
from django_rmq_retry.embedded.place import AlreadyRunning, NotRunning, RunningBroker, claimed, folder_of, port_of
from django_rmq_retry.errors import ConfigurationError


def test_no_broker_runs_in_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=r"Start `manage\.py rmq_consume`"):
        port_of(tmp_path / "none")


def test_a_claimed_folder_gives_the_port_until_the_claim_ends(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    with claimed(folder) as publish:
        with pytest.raises(NotRunning):
            port_of(folder)
        publish(RunningBroker(port=4711))
        found = port_of(folder)

    assert found == 4711
    with pytest.raises(NotRunning):
        port_of(folder)


def test_a_folder_can_be_claimed_only_once(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(AlreadyRunning, match="is already running"), claimed(tmp_path):
        pass


def test_the_files_of_a_killed_broker_are_not_taken_for_a_running_one(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "broker.json").write_text('{"port": 4711, "pid": 1}')

    with pytest.raises(NotRunning):
        port_of(tmp_path)


def test_the_port_of_a_killed_broker_is_not_given_for_its_successor(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"port": 4711, "pid": 1, "brought": true}')

    with claimed(tmp_path), pytest.raises(NotRunning):
        port_of(tmp_path)


def test_the_port_of_a_killed_broker_is_not_given_while_its_successor_is_about_to_remove_it(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"port": 4711, "pid": 1, "brought": true}')

    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NotRunning):
            port_of(tmp_path)


def test_only_the_note_is_left_in_a_folder_that_is_claimed(tmp_path: Path) -> None:
    with claimed(tmp_path) as publish:
        publish(RunningBroker(port=4711))
        with pytest.raises(AlreadyRunning), claimed(tmp_path):
            pass
        names = {one.name for one in tmp_path.iterdir()}

    assert names == {"lock", "broker.json"}
    assert {one.name for one in tmp_path.iterdir()} == {"lock"}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)

    with pytest.raises(ConfigurationError, match=r"must be yours, and only you may write to it \(chmod go-w\)"):
        port_of(tmp_path)
    with pytest.raises(ConfigurationError, match="must be yours"), claimed(tmp_path):
        pass


def test_each_project_and_user_has_its_own_folder() -> None:
    folders = {folder_of("/srv/bank"), folder_of("/srv/shop")}

    assert len(folders) == 2
    assert folder_of("/srv/bank") in folders
    assert {one.parent.name for one in folders} == {f"django-rmq-retry-{os.getuid()}"}


def test_an_invalid_port_file_is_ignored(tmp_path: Path) -> None:
    with claimed(tmp_path):
        (tmp_path / "broker.json").write_text("[]")
        with pytest.raises(NotRunning):
            place.port_of(tmp_path)
