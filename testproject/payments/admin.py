"""Payments in the admin: saving a new one publishes it, and the other bank can be set to fail."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from testproject.payments.models import Entry, Gateway, Payment
from testproject.payments.sending import send


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    list_display = ("id", "kind", "account", "amount", "state", "attempts", "created")
    list_filter = ("kind", "state")
    list_select_related = ("account",)
    readonly_fields = ("reference", "state", "attempts", "created")

    def save_model(self, request: HttpRequest, obj: Payment, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            # The admin saves inside a transaction: the message is sent when it commits.
            send(obj)

    def has_change_permission(self, request: HttpRequest, obj: Payment | None = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Payment | None = None) -> bool:
        return False


@admin.register(Entry)
class EntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    list_display = ("id", "payment", "account", "amount", "balance", "created")
    list_select_related = ("account", "payment__account")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        return False


@admin.register(Gateway)
class GatewayAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic in the stubs only
    list_display = ("__str__", "mode")
    list_editable = ("mode",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return not Gateway.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Gateway | None = None) -> bool:
        return False
