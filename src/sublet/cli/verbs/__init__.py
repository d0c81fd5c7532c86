"""One file per verb, and nothing else. Slow imports are inside functions, so that help answers at once."""
