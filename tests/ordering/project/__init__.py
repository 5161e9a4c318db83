"""A ledger whose postings keep their order within each account."""
