"""Which mistake made a wrong answer: the table of mistakes, the search, the words."""
