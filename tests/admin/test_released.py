"""What waits behind a parked message by its ordering key is handled once that one is sent or discarded."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.models import BlockedKey, BlockedMessage, ItemReason, ParkedMessage, RequeueItem
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page, press
from tests.admin.pasting import ADMIN, previewed
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
SAID = "1 message waits behind 1 of these by its ordering key and is handled next"
NAMED = "PAY-3001 PAY-3011, which is to be left out, waits behind it (ordering key ACC-5)."
WAITS = "PAY-3011 → Waits for a blocked ordering key: 3a05-11 (in its content), behind 3a05-01 (ordering key ACC-5)"


def blocks(first: ParkedMessage, **fields: Any) -> BlockedKey:
    """A blocked key behind whose first message PAY-3011 waits."""
    values = {"key": "ACC-5", "blocker": "3a05-01", "identity": first.identity, "queue": first.queue, "parked": True}
    key = made.blocked_key(**{**values, "waiting": 1, **fields})
    names = {"shown": "3a05-11", "name": "m2", "identity": "message:2", "digest": key.digest}
    body = b'{"payment": "PAY-3011"}'
    BlockedMessage.objects.create(block=key, body=body, properties=b"", waiting_since=timezone.now(), **names)
    return key


@pytest.fixture
def first() -> ParkedMessage:
    """PAY-3001, in front of PAY-3011, and in a group with PAY-3002."""
    cause = made.group()
    made.message(cause, business_key="PAY-3002")
    return made.message(cause, business_key="PAY-3001")


def without(client: Client, first: ParkedMessage, keys: str = "PAY-3011") -> Any:
    return press(client, previewed(client, group=first.group_id), "Leave these out", **{"except": keys})


class TestAKeyToLeaveOutThatWaitsBehindAnother:
    """The bank had paid PAY-3011 by hand; it was excluded, and paid once PAY-3001 before it was processed."""

    def test_leaves_out_the_message_in_front_unless_it_is_included(self, page: Client, first: ParkedMessage) -> None:
        blocks(first)
        preview = without(page, first)
        included = press(page, preview, "Include anyway 1 is in front")
        mark = preview.context["left"].mark
        started = press(page, preview, "Requeue 1 message", checked=mark, reason="the bank is back")
        codes = dict(RequeueItem.objects.values_list("message__business_key", "skip_code"))

        assert NAMED in Page(preview).text
        assert WAITS in Page(preview).text
        assert SAID not in Page(preview).text
        assert SAID in Page(included).text
        assert codes == {"PAY-3001": ItemReason.BLOCKS_LISTED, "PAY-3002": ""}
        assert WAITS in Page(started).text
        assert "matches no" not in Page(started).text

    def test_is_found_behind_a_message_without_an_id(self, page: Client, first: ParkedMessage) -> None:
        ParkedMessage.objects.filter(pk=first.pk).update(message_id="")
        blocks(first, identity=f"body:{first.sha256}")

        assert NAMED in Page(without(page, first)).text

    def test_leaves_out_nothing_if_the_message_in_front_is_none_of_these(
        self, page: Client, first: ParkedMessage
    ) -> None:
        blocks(first, queue="another.queue")
        shown = without(page, first)

        assert shown.context["report"].sendable == 2
        assert SAID not in Page(shown).text

    def test_is_found_however_many_wait_with_the_same_key(self, page: Client, first: ParkedMessage) -> None:
        for number in range(9):
            one = made.message(made.group(), business_key=f"PAY-4{number}")
            blocks(one, key=f"ACC-9{number}")
        blocks(first)

        assert NAMED in Page(without(page, first)).text

    def test_is_told_in_the_shell(self, first: ParkedMessage, tmp_path: Any) -> None:
        blocks(first)
        (tmp_path / "paid.txt").write_text("PAY-3011")
        group, file = str(first.group_id), str(tmp_path / "paid.txt")
        told = run("rmq_parked", "requeue", "--group", group, "--except-from", file, "--dry-run")

        assert "1 blocks listed, left out (--include blocks_listed sends it)" in told.out
        assert "PAY-3011, which is to be left out, waits behind it (ordering key ACC-5)." in told.out

    def test_names_no_ordering_key_to_who_may_not_see_it(self, first: ParkedMessage) -> None:
        blocks(first)
        clerk = client_of(made.person("clerk", "view_parkedmessage", "requeue", "bulk_requeue"))
        shown = without(clerk, first)

        assert shown.context["report"].sendable == 1
        assert "ACC-5" not in Page(shown).text


def test_a_preview_and_a_discard_say_what_they_release(page: Client, first: ParkedMessage) -> None:
    blocks(first)
    group = str(first.group_id)
    shown = [
        Page(page.get(f"{ADMIN}{name}/", {"group": group}, follow=True))
        for name in ("requeuerun/preview", "parkedmessage/discard")
    ]
    preview = run("rmq_parked", "requeue", "--group", group, "--dry-run")
    discard = run("rmq_parked", "discard", "--group", group, "--category", "test", "--dry-run")

    assert all(SAID in one.text for one in shown)
    assert [one.links["Blocked keys"] for one in shown] == [f"{ADMIN}blockedkey/"] * 2
    assert SAID in preview.out
    assert SAID in discard.err
