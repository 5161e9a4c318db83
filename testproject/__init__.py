"""A small bank that lives on django_rmq_retry: demo, example and test bed."""
