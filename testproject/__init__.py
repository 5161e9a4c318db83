"""A small bank that uses django_rmq_retry: demo, example and test project."""
