"""Shortcuts for what a page does a thousand times give what Django's own functions give."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.contrib.admin.sites import AdminSite
from django.urls import path, reverse, set_script_prefix
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy, override

from django_rmq_retry.admin.messages import ParkedMessageAdmin
from django_rmq_retry.markup import address_of, html, html_joined, visible
from django_rmq_retry.models import ParkedMessage

PAGE = "parkedmessage_change"
second = AdminSite(name="second")
second.register(ParkedMessage, ParkedMessageAdmin)
# By the language, on two sites.
urlpatterns = i18n_patterns(path("0/admin/", admin.site.urls), path("second/", second.urls))


@pytest.mark.parametrize(
    "part",
    ["a", "<b>'&\"", SafeString("<b>"), gettext_lazy("Name"), gettext_lazy("<i>"), 7, None, SimpleNamespace(of="<b>")],
)
def test_html_is_escaped_as_django_escapes_it(part: Any) -> None:
    assert html("<p {}>{}</p>", part, "<") == format_html("<p {}>{}</p>", part, "<")
    assert html_joined("<br>", [part, "<"]) == format_html_join(SafeString("<br>"), "{}", [(part,), ("<",)])
    assert isinstance(html("{}", part), SafeString)
    assert isinstance(html_joined("", [part]), SafeString)


def test_an_address_is_the_one_that_django_finds_wherever_the_admin_is(settings: Any) -> None:
    assert address_of(PAGE, 17) == reverse(f"admin:rmq_retry_{PAGE}", args=(17,))
    settings.ROOT_URLCONF = __name__
    found = [address_of(PAGE, 17), address_of(PAGE, 17, "second")]
    with override("de"):
        found.append(address_of(PAGE, 17))
    set_script_prefix("/bank/")
    try:
        found.append(address_of(PAGE, 100))
    finally:
        set_script_prefix("/")

    rest = "rmq_retry/parkedmessage/"
    assert found == [
        f"/en-us/0/admin/{rest}17/change/",
        f"/en-us/second/{rest}17/change/",
        f"/de/0/admin/{rest}17/change/",
        f"/bank/en-us/0/admin/{rest}100/change/",
    ]


def test_a_visible_text_is_cut_after_its_characters_are_replaced() -> None:
    assert visible("abcdef", 6) == "abcdef"
    assert visible("abcdef", 5) == "abcd…"
    assert visible("a\0\u202eb", 5) == "a␀\\u…"
