"""Accounts in the admin: raise a limit here and a waiting withdrawal succeeds."""

from django.contrib import admin

from testproject.accounts.models import Account


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    list_display = ("number", "holder", "balance", "limit", "closed")
    list_editable = ("limit", "closed")
    search_fields = ("number", "holder")
