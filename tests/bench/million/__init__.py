"""A million parked messages on PostgreSQL: times of the pages and of bulk actions."""
