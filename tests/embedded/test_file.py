"""The file itself: whose it is, whether it is whole, and who has it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from django_rmq_retry.embedded.engine.session import ClientSession
from django_rmq_retry.embedded.engine.specs import QueueSpec
from django_rmq_retry.embedded.file_store import FileStore, UnusableFile
from django_rmq_retry.embedded.wire.client import Broker
from tests.embedded.engine_rig import LASTING, EngineRig


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.sqlite3"


def filled(path: Path, messages: int) -> None:
    with closing(FileStore(path, epoch=0.0)) as store:
        channel = ClientSession(EngineRig("4.0", store).vhost).channel(1)
        channel.queue_declare("q", durable=True)
        for _ in range(messages):
            channel.publish("", "q", LASTING, b"x" * 1000)
        store.commit()


def refused(path: Path) -> str:
    """The reason that it is refused; not a byte of it may change."""
    before = path.read_bytes()
    with pytest.raises(UnusableFile) as caught:
        FileStore(path, epoch=0.0)

    assert path.read_bytes() == before
    assert caught.value.path == path
    return str(caught.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("To whom it may concern")

    assert refused(path) == (
        f"The embedded broker's file {path} was not written by it and was left unchanged. "
        "Move it away to start with an empty broker, or name another folder in RMQ_RETRY['URL']."
    )


def test_a_database_of_another_project_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE queues (name); INSERT INTO queues VALUES ('precious');")

    assert "was not written by it and was left unchanged" in refused(path)


def test_a_damaged_file_is_refused_and_left_alone(path: Path) -> None:
    filled(path, 200)
    whole = path.read_bytes()
    path.write_bytes(whole[:20_000] + b"\xa5" * 30_000 + whole[50_000:])

    assert "is damaged (" in refused(path)
    assert "left unchanged" in refused(path)


def test_a_file_that_was_cut_off_is_refused_and_left_alone(path: Path) -> None:
    filled(path, 200)
    path.write_bytes(path.read_bytes()[:-30_000])

    assert "is damaged (" in refused(path)


def test_a_file_of_a_later_format_is_refused_and_left_alone(path: Path) -> None:
    filled(path, 1)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 9")

    assert "has format 9; this version reads format 1." in refused(path)


def test_two_brokers_cannot_have_one_file(path: Path) -> None:
    broker = Broker(file=path)
    with pytest.raises(UnusableFile, match="is in use by another embedded broker"):
        Broker(file=path)
    broker.close()
    Broker(file=path).close()


def test_an_unfinished_draft_of_the_file_is_replaced(path: Path) -> None:
    draft = path.with_name("broker.sqlite3.new")
    draft.write_bytes(b"SQLite format 3\0 and then the lights went out")
    filled(path, 3)
    with closing(FileStore(path, epoch=0.0)) as store:
        kept = store.read()

        assert [spec.name for spec in kept.queues] == ["q"]
        assert len(list(kept.messages)) == 3
    assert not draft.exists()


def test_a_failed_commit_raises_and_is_written_later(path: Path) -> None:
    with closing(FileStore(path, epoch=0.0)) as store:
        store.queue_declared(QueueSpec(name="q", durable=True))
        store._file.execute("PRAGMA query_only = ON")
        with pytest.raises(UnusableFile, match=r"cannot be written \(attempt to write a readonly database\)\."):
            store.commit()
        store._file.execute("PRAGMA query_only = OFF")
        store.commit()

        assert [spec.name for spec in store.read().queues] == ["q"]
