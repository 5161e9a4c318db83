"""The suite of faults: real processes, a broker and a database that die, and a ledger outside of all of it."""
