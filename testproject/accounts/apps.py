"""The accounts of the bank."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "testproject.accounts"
