"""The demo that ``make demo`` runs: its broker, processes and payments. The bank itself does not use it."""
