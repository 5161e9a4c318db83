"""Exports: exact with full permissions, harmless for spreadsheets, and always in the audit log."""

import base64
import csv
import hashlib
import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import Payload, export, import_lines, neutral
from tests.operators.made import ANN, record
from tests.operators.second_person import needing_second_person

pytestmark = pytest.mark.django_db
EVERYTHING = {"state": ["parked"]}


def exported(payload: Payload = Payload.NONE) -> list[dict[str, Any]]:
    lines = export(Selection.of_filter(EVERYTHING), ANN, form="jsonl", payload=payload)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1"])
def test_an_exported_cell_is_never_a_formula(cell: str) -> None:
    record(key=cell)
    [head, row] = list(csv.reader("".join(export(Selection.of_filter(EVERYTHING), ANN)).splitlines(keepends=True)))

    assert dict(zip(head, row, strict=True))["business_key"] == f"'{cell}"
    assert (neutral(-5), neutral(None), neutral("a=b")) == ("-5", "", "a=b")


def test_an_export_without_the_contents_permission_holds_no_contents() -> None:
    record(body=b'{"secret-word": 1}', headers={"tenant": "hidden-word"}, error_text="hidden-word")

    told = json.dumps(exported())
    assert "secret-word" not in told
    assert "hidden-word" not in told


def test_an_export_reads_one_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_rmq_retry.parked.transfer.STREAMED_AT_ONCE", 2)
    ids = [record().pk for _ in range(5)]
    with CaptureQueriesContext(connection) as asked:
        told = [row["id"] for row in exported(Payload.WHOLE)]
    read = [one["sql"] for one in asked.captured_queries if "properties" in one["sql"]]

    assert (told, len(read), [sql for sql in read if "LIMIT 2" not in sql]) == (ids, 4, [])


def test_a_whole_export_has_the_exact_bytes() -> None:
    one = record(body=b"\xff\0{", key="payment:7")
    [row] = exported(Payload.WHOLE)

    assert base64.b64decode(row["body_base64"]) == b"\xff\0{"
    assert base64.b64decode(row["properties_base64"]) == bytes(ParkedMessage.objects.get().properties)
    assert (row["schema"], row["id"], row["keys"]) == ("rmq_retry.parked/1", one.pk, ["payment:7"])
    assert row["parked_at"].endswith("Z")


def whole() -> list[str]:
    return list(export(Selection.of_filter(EVERYTHING), ANN, form="jsonl", payload=Payload.WHOLE))


def test_an_import_parks_the_exported_message_unchanged() -> None:
    one = record(body=b"\xff\0{", headers={"tenant": "acme"}, error_text="timeout", summary="#1 BankDown", unacked=True)
    lines = whole()
    ParkedMessage.objects.all().delete()
    done = import_lines(lines, ANN)
    now = ParkedMessage.objects.get()

    assert (done.stored, done.refused) == (1, 0)
    assert (bytes(now.body), bytes(now.properties)) == (b"\xff\0{", bytes(one.properties))
    same = ("message_id", "queue", "parked_in", "exchange", "routing_key", "reason", "error", "error_text", "attempts")
    assert [getattr(now, name) for name in same] == [getattr(one, name) for name in same]
    assert (now.state, now.summary, now.group.title, now.unacked) == ("parked", "#1 BankDown", "BankDown", True)


@pytest.mark.parametrize("message_id", ["m-7", ""])
def test_importing_a_file_twice_creates_one_record(message_id: str) -> None:
    record(message_id=message_id)
    lines = whole()
    ParkedMessage.objects.all().delete()

    assert (import_lines(lines, ANN).stored, import_lines(lines, ANN).stored) == (1, 1)
    assert ParkedMessage.objects.count() == 1


def test_an_import_reports_unusable_lines_and_stores_the_others() -> None:
    record()
    [masked] = export(Selection.of_filter(EVERYTHING), ANN, form="jsonl", payload=Payload.MASKED)
    [good] = whole()
    done = import_lines(["oops", good, masked, '{"schema": "other"}', "[1]", "", b"\xff"], ANN)

    assert done.stored == 1
    assert [line for line, _why in done.problems] == [1, 3, 4, 5, 7]
    assert done.problems[1][1] == "It was exported without its exact contents."


class TestWhereAnEditNeedsASecondPerson:
    """An import changes the body of no message."""

    @pytest.fixture(autouse=True)
    def four_eyes(self, settings: Any) -> None:
        needing_second_person(settings)

    @staticmethod
    def edited(line: str, **others: object) -> str:
        body = b'{"payment": 8}'
        changed = {"body_base64": base64.b64encode(body).decode(), "sha256": hashlib.sha256(body).hexdigest()}
        return json.dumps({**json.loads(line), **changed, **others})

    def test_a_file_is_imported_again_unchanged(self) -> None:
        record(message_id="m-7")
        record(message_id="")
        done = import_lines(whole(), ANN)

        assert (done.stored, done.problems) == (2, [])

    def test_a_line_with_another_body_than_that_of_its_message_is_refused(self) -> None:
        one = record(message_id="m-7")
        [line] = whole()
        done = import_lines([self.edited(line)], ANN)

        assert done.problems == [
            (1, f"Its body is not that of message #{one.pk}, which has its id, and an edit needs a second person.")
        ]
        assert ParkedMessage.objects.count() == 1

    @pytest.mark.parametrize("message_id", ["m-7", ""])
    def test_a_line_with_another_body_than_the_exported_one_is_refused(self, message_id: str) -> None:
        record(message_id=message_id)
        [line] = whole()
        ParkedMessage.objects.all().delete()
        done = import_lines([self.edited(line, sha256=json.loads(line)["sha256"])], ANN)

        assert [why.partition(",")[0] for _line, why in done.problems] == ["Its body was changed after the export"]
        assert not ParkedMessage.objects.exists()

    def test_two_messages_with_one_id_are_imported_again(self) -> None:
        record(message_id="m-7")
        record(message_id="m-7", body=b'{"payment": 8}')
        done = import_lines(whole(), ANN)

        assert (done.stored, done.problems) == (2, [])

    def test_without_the_setting_and_for_code_a_changed_line_is_another_message(self, settings: Any) -> None:
        record(message_id="m-7")
        [line] = whole()
        by_code = import_lines([self.edited(line)], Actor.of_code("repair"))
        settings.RMQ_RETRY = {name: value for name, value in settings.RMQ_RETRY.items() if name != "FOUR_EYES"}
        by_ann = import_lines([self.edited(line)], ANN)

        assert (by_code.stored, by_ann.stored, ParkedMessage.objects.count()) == (1, 1, 2)
