"""A small bank for the runbook. BANK_HANDLERS names its handlers; a file in BANK_FOLDER makes them fail."""
