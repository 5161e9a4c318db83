"""What ``make demo`` plays: where, with which processes, which payments. Nothing here is part of the bank."""
