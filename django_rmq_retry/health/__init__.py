"""Whether something is wrong: facts about broker and database, and rules that judge them."""
