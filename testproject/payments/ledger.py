"""The books: each payment is posted once, in the order of the postings."""

from django.db import transaction

from testproject.accounts.models import Account
from testproject.payments.errors import NotCovered
from testproject.payments.models import Entry, Payment


def book(payment: Payment) -> bool:
    """Take the amount from the account unless that was done before; return True if it was done now.

    The account's row is locked first, so concurrent postings wait here, and the existing entry is reliable.
    """
    with transaction.atomic():
        account = Account.objects.select_for_update().get(pk=payment.account_id)
        if Entry.objects.filter(payment=payment).exists():
            return False
        if account.balance < payment.amount:
            raise NotCovered(account.number, payment.amount)
        account.balance -= payment.amount
        account.save(update_fields=["balance"])
        Entry.objects.create(payment=payment, account=account, amount=payment.amount, balance=account.balance)
        Payment.objects.filter(pk=payment.pk).update(state=Payment.State.POSTED)
    return True
