"""What becomes of parked messages and attempts in the database."""
