"""Our publisher without the outbox: messages are sent on commit."""

from tests.bench.contenders.outboxing import run

if __name__ == "__main__":
    run(outbox=False)
