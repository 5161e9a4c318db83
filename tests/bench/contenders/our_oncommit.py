"""Ours without the outbox: what is published leaves on commit."""

from tests.bench.contenders.outboxing import run

if __name__ == "__main__":
    run(outbox=False)
