"""Ours with the outbox: what is published is a row, sent after the commit and deleted."""

from tests.bench.contenders.outboxing import run

if __name__ == "__main__":
    run()
