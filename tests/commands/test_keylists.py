"""Lists of keys on the command line: the match of each, exactly these, and all but these."""

import json
import re
from pathlib import Path

import pytest
from django.utils import timezone

from django_rmq_retry.models import KeyList, OperatorAction, RequeueItem, RequeueRun, State
from tests.admin import made
from tests.commands.running import Ran, parked
from tests.operators.made import again, group, record

TEST = "discard --category test"
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge")]


def written(folder: Path, text: str | bytes) -> str:
    path = folder / "keys.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_one_command_reports_the_state_of_each_key(tmp_path: Path) -> None:
    one, two = record(key="PAY-1"), record(key="PAY-2", state=State.PROCESSED)
    told = parked("keys", written(tmp_path, "PAY-2,PAY-1;pay-1"))

    assert told.lines == [
        ["KEY", "RESULT", "ID", "STATE", "RUN", "DIFFERS IN CASE", "ELSEWHERE"],
        ["PAY-2", "not open", str(two.pk), "processed", "-", "-", "-"],
        ["PAY-1", "found", str(one.pk), "parked", "-", "-", "-"],
        ["pay-1", "not found", "-", "-", "-", "PAY-1", "-"],
    ]
    assert told.code == 5
    assert not KeyList.objects.exists()


def test_a_key_of_a_message_that_was_handled_twice_says_so() -> None:
    run = RequeueRun.objects.create(created_at=timezone.now(), by="ann", state="finished")
    one = record(key="PAY-1", state=State.PROCESSED)
    RequeueItem.objects.create(run=run, message=one, place=0, revision=1, state="processed", cycle=2, handled=2)
    told, listed = parked("keys", "-", given=b"PAY-1"), parked("list", "--keys-from", "-", given=b"PAY-1")

    assert told.lines[1][:4] == ["PAY-1", "not open", str(one.pk), "processed, handled twice"]
    assert f"  not open: PAY-1 (#{one.pk} processed, handled twice)" in listed.err


def test_a_script_learns_what_is_in_doubt_of_the_messages_of_a_list() -> None:
    """The page and the table told it, the JSON did not: a script paid again what may have been paid."""
    perhaps, twice = record(key="PAY-1", unacked=True), record(key="PAY-2", state=State.PROCESSED)
    record(key="PAY-3")
    run = RequeueRun.objects.create(created_at=timezone.now(), by="ann", state="finished")
    RequeueItem.objects.create(run=run, message=twice, place=0, revision=1, state="processed", cycle=2, handled=2)
    data = json.loads(parked("keys", "-", "--json", given=b"PAY-1 PAY-2 PAY-3").out)

    assert {key: [(one["id"], one["doubt"]) for one in some] for key, some in data["in_doubt"].items()} == {
        "PAY-1": [(perhaps.pk, "may_have_been_handled")],
        "PAY-2": [(twice.pk, "handled_twice")],
    }
    assert data["not_open"]["PAY-2"][0]["doubt"] == "handled_twice"


def test_keys_of_messages_that_were_not_parked_are_named_with_their_place() -> None:
    """A payment that waited behind a blocked key was "not found"; it was paid elsewhere, unblocked and paid again."""
    record(key="PAY-1")
    made.not_parked()
    keys = b"PAY-1\nOUT-2\nPAY-60\nPAY-61\nPAY-70\nPAY-9"
    told = parked("keys", "-", given=keys)
    data = json.loads(parked("keys", "-", "--json", given=keys).out)
    refused = parked("requeue", "--keys-from", "-", "--yes", given=keys)

    assert {row[0]: (row[1], row[-1]) for row in told.lines[1:]} == {
        "PAY-1": ("found", "-"),
        "OUT-2": ("elsewhere", "In the outbox, not sent: OUT-2"),
        "PAY-60": ("elsewhere", "Blocked ordering key: ACC-6, where PAY-60 goes first"),
        "PAY-61": ("elsewhere", "Waits for a blocked ordering key: PAY-61, behind PAY-60 (ordering key ACC-6)"),
        "PAY-70": ("elsewhere", "In a halted queue: REF-7 (PAY-70), first in bank.main"),
        "PAY-9": ("not found", "-"),
    }
    assert told.code == 5
    assert data["not_found"] == ["PAY-9"]
    assert {key: one[0]["room"] for key, one in data["not_parked"].items()} == {
        "OUT-2": "outbox",
        "PAY-60": "keys",
        "PAY-61": "keys",
        "PAY-70": "queues",
    }
    assert "5 keys match no message, several, one elsewhere or on hold. Nothing was changed." in refused.err
    assert "PAY-61 (Waits for a blocked ordering key: PAY-61, behind PAY-60 (ordering key ACC-6))" in refused.err
    assert parked("keys", "-", given=b"PAY-61").code == 5


def test_a_key_in_a_body_that_cannot_be_read_is_named_with_its_message() -> None:
    cut = record(body=b'{"payment": "CUT-2", "amount": 12')
    told = parked("keys", "-", given=b"CUT-2")
    data = json.loads(parked("keys", "-", "--json", given=b"CUT-2").out)
    refused = parked("discard", "--all", "--category", "test", "--yes", "--except-from", "-", given=b"CUT-2")

    assert (told.lines[1][:4], told.code) == (["CUT-2", "in content", str(cut.pk), "parked"], 5)
    assert (data["not_found"], data["in_content"]["CUT-2"][0]["id"]) == ([], cut.pk)
    assert f"which is not left out: CUT-2 (#{cut.pk} parked)" in refused.err
    assert (refused.code, again(cut).state) == (7, "parked")


@pytest.mark.parametrize(("text", "code"), [("PAY-1", 0), ("PAY-1 PAY-9", 5), ("PAY-2", 5), ("PAY-9", 6)])
def test_the_exit_code_of_keys_states_whether_all_were_found(text: str, code: int) -> None:
    record(key="PAY-1")
    record(key="PAY-2", state=State.DISCARDED)

    assert parked("keys", "-", given=text.encode()).code == code


def test_an_act_on_keys_of_which_none_was_found_has_nothing_to_confirm() -> None:
    record(key="PAY-1")
    told = parked("requeue", "--keys-from", "-", "--yes", given=b"PAY-8 PAY-9")

    assert (told.out, told.code) == ("", 6)
    assert "0 found and parked, 2 not found" in told.err


def test_only_the_listed_messages_are_discarded_and_missing_keys_reported() -> None:
    one, two, other = record(key="PAY-1"), record(message_id="m-x"), record(key="PAY-3")
    words, keys = ("discard", "--keys-from", "-", "--category", "test", "--yes"), b"PAY-1\nm-x\nPAY-9\n"
    refused, before = parked(*words, given=keys), again(one).state
    told = parked(*words, "--keys-checked", given=keys)

    assert (refused.out, refused.code, before) == ("", 7, "parked")
    assert "1 key matches no message, several, one elsewhere or on hold. Nothing was changed." in refused.err
    assert (told.out, told.code) == ("2 messages discarded.\n", 5)
    assert (
        "3 keys: 2 found and parked, 1 not found, 0 found several times, 0 on hold, 0 not open.\n  not found: PAY-9"
        in told.err
    )
    assert [again(row).state for row in (one, two, other)] == ["discarded", "discarded", "parked"]


def test_all_but_the_listed_messages_are_discarded(tmp_path: Path) -> None:
    cause = group("bank")
    paid, other = record(key="PAY-1", group=cause), record(key="PAY-2", group=cause)
    words = (
        "discard",
        "--group",
        str(cause.pk),
        "--except-from",
        written(tmp_path, "PAY-1"),
        "--category",
        "test",
        "--yes",
    )
    told = parked(*words)

    assert (told.out, told.code) == ("1 message discarded.\n", 0)
    assert told.err.startswith("1 message left out by 1 key.\n")
    assert (again(paid).state, again(other).state) == ("parked", "discarded")
    assert OperatorAction.objects.get().facts["selection"]["filter"]["except_keys"]["count"] == 1


def test_an_exclusion_key_without_a_match_is_reported_and_exits_with_5(tmp_path: Path) -> None:
    record(key="PAY-1")
    words = ("hold", "--all", "--for", "2h", "--except-from", written(tmp_path, "pay-1"), "--yes")
    told, checked = parked(*words), parked(*words, "--keys-checked")

    assert (told.code, checked.code) == (7, 5)
    assert "not found, so no message is left out: pay-1\n  differs in case only: pay-1 → PAY-1" in told.err


@pytest.mark.parametrize("option", ["--all", "--group {group}", "--selection {token}", "{one} {two}"])
def test_keys_can_be_excluded_from_any_selection(option: str, tmp_path: Path) -> None:
    one, two = record(key="PAY-1"), record(key="PAY-2")
    token = parked("discard", "--all", "--category", "test", "--dry-run", "--json").data["selection"]
    words = option.format(group=one.group_id, token=token, one=one.pk, two=two.pk).split()
    told = parked("discard", *words, "--except-from", written(tmp_path, "PAY-2"), "--category", "test", "--yes")

    assert told.out == "1 message discarded.\n"
    assert (again(one).state, again(two).state) == ("discarded", "parked")


def test_the_token_of_a_dry_run_keeps_its_exclusions(tmp_path: Path) -> None:
    one, two = record(key="PAY-1"), record(key="PAY-2")
    dry = parked(
        "discard", "--all", "--except-from", written(tmp_path, "PAY-2"), "--category", "test", "--dry-run", "--json"
    )
    late = record(key="PAY-3")
    parked("discard", "--selection", dry.data["selection"], "--category", "test", "--yes")

    assert (dry.data["count"], dry.data["except"]["messages"], dry.data["keys"]) == (1, 1, None)
    assert [again(row).state for row in (one, two, late)] == ["discarded", "parked", "parked"]


def test_a_token_with_exclusions_refuses_further_exclusions(tmp_path: Path) -> None:
    paid, open_one = record(key="PAY-1"), record(key="PAY-2")
    words = ("discard", "--category", "test")
    dry = parked(*words, "--all", "--except-from", written(tmp_path, "PAY-1"), "--dry-run", "--json")
    told = parked(*words, "--selection", dry.data["selection"], "--except-from", written(tmp_path, "PAY-2"), "--yes")

    assert told.code == 2
    assert told.err.startswith("This selection excludes a list of keys already")
    assert [again(row).state for row in (paid, open_one)] == ["parked", "parked"]


def test_a_requeue_has_exactly_the_listed_messages(tmp_path: Path) -> None:
    one, held = record(key="PAY-1"), record(key="PAY-2", state=State.ON_HOLD)
    record(key="PAY-3")
    keys = written(tmp_path, "PAY-1\nPAY-2")
    told = parked("requeue", "--keys-from", keys, "--planned", "--yes")
    parked("requeue", "--keys-from", keys, "--include", "on_hold", "--include", "under_way", "--planned", "--yes")
    runs = RequeueRun.objects.order_by("pk")

    assert "  1 on hold, left out (--include on_hold sends it): PAY-2 " in told.err
    assert [[(item.message_id, item.skip_code) for item in run.items.order_by("pk")] for run in runs] == [
        [(one.pk, ""), (held.pk, "on_hold")],
        [(one.pk, ""), (held.pk, "")],
    ]


def test_an_export_and_a_list_have_exactly_the_listed_messages(tmp_path: Path) -> None:
    record(key="PAY-1")
    record(key="PAY-2")
    keys = written(tmp_path, "PAY-2")

    assert [json.loads(line)["business_key"] for line in parked("export", "--keys-from", keys).out.splitlines()] == [
        "PAY-2"
    ]
    assert [one["business_key"] for one in parked("list", "--except-from", keys, "--json").data["items"]] == ["PAY-1"]


@pytest.mark.parametrize("text", ["PAY-1\r\nPAY-2".encode("utf-16"), b"\xef\xbb\xbfPAY-1\nPAY-2", b'"PAY-1";"PAY-2"'])
def test_key_files_of_office_programs_are_read(text: bytes, tmp_path: Path) -> None:
    record(key="PAY-1")
    record(key="PAY-2")

    assert parked("keys", written(tmp_path, text)).code == 0


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (f"{TEST} --keys-from /nowhere", b"", "/nowhere cannot be read: No such file or directory."),
        (f"{TEST} --keys-from -", b"\xff\xfe\xff", "- is not UTF-8 text. Save it as UTF-8."),
        (f"{TEST} --keys-from -", b"\xfc", "- is not UTF-8 text. Save it as UTF-8."),
        (f"{TEST} --keys-from -", b" \n", "- contains no keys."),
        (f"{TEST} --all --except-from -", b"", "- contains no keys."),
        (
            f"{TEST} --keys-from - --except-from -",
            b"x",
            "Only one argument can be read from stdin. Pass a file for the others.",
        ),
        (f"{TEST} - --except-from -", b"x", "Only one argument can be read from stdin. Pass a file for the others."),
        (
            f"{TEST} 7 --keys-from -",
            b"x",
            "--keys-from cannot be combined with IDs, --all or --selection. Pass one of them.",
        ),
        (
            "discard --category test --all --keys-from -",
            b"x",
            "--keys-from cannot be combined with IDs, --all or --selection. Pass one of them.",
        ),
        (
            "discard --category test --except-from -",
            b"x",
            "No messages are selected. Pass IDs, a filter, --keys-from or --all.",
        ),
        (
            "requeue --state parked --yes",
            b"",
            "--state parked only narrows a selection. Pass a filter, such as --group or --queue, or --keys-from with",
        ),
        (
            "keys -",
            b"payment,amount\nPAY-1,100\n",
            "The text is a table of 2 columns with the header “payment, amount”.",
        ),
        (
            "discard --category test --keys-from -",
            b"payment;amount\nx;7\n",
            "Give only the column of the keys, one key per",
        ),
        (
            "discard --category test --all --except-from -",
            b"key\tsum\nx\t7\n",
            "Give only the column of the keys, one key",
        ),
        ("keys -", b"x," * 10 + b"\n".join(b"%d" % n for n in range(10_001)), "The list has 10002 keys; at most 10000"),
    ],
)
def test_invalid_key_options_are_refused(words: str, given: bytes, said: str) -> None:
    record(key="x")
    told: Ran = parked(*words.split(), given=given)

    assert (told.code, OperatorAction.objects.count()) == (2, 0)
    assert said in told.err


def test_a_list_says_which_keys_are_a_customers_or_a_correlation_id(tmp_path: Path) -> None:
    record(key="PAY-1", keys=["PAY-1", "CUST-7"], correlation_id="order-9")
    two = record(key="PAY-2", keys=["PAY-2", "CUST-7"])
    told = parked("list", "--keys-from", written(tmp_path, f"CUST-7\norder-9\n#{two.pk}\nPAY-2"))

    assert "  not the first key, such as a customer's: CUST-7 (2 messages)\n" in told.err
    assert "  no key, but a correlation id or a number: order-9 (#" in told.err
    assert f"#{two.pk} (#{two.pk} parked)" in told.err


def test_copies_of_one_payment_are_told_from_several_payments(tmp_path: Path) -> None:
    for key, content in (("PAY-1", 7), ("PAY-1", 7), ("PAY-2", 8), ("PAY-2", 9)):
        record(key=key, content=content)
    keys = written(tmp_path, "PAY-1\nPAY-2")
    told = parked("list", "--keys-from", keys).err

    assert [line[:2] for line in parked("keys", keys).lines[1::2]] == [["PAY-1", "copies"], ["PAY-2", "several"]]
    assert parked("keys", keys, "--json").data["copies"] == ["PAY-1"]
    assert re.search(r"  copies of one message: PAY-1 \(#\d+ parked, #\d+ parked\)\n", told)
    assert re.search(r"  found several times: PAY-2 \(#\d+ parked, #\d+ parked\)\n", told)
