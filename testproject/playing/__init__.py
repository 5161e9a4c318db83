"""What ``make demo`` plays: a place to play in, the story, and what came of it. Nothing here is part of the bank."""
