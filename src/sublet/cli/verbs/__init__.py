"""One file per verb, and nothing else. What takes time to import is imported inside, so that help answers at once."""
