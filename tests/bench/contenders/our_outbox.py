"""Our publisher with the outbox: a message is a row that is sent after the commit and then deleted."""

from tests.bench.contenders.outboxing import run

if __name__ == "__main__":
    run()
