"""The README's claims as data: run anew by `make claims`, which writes its tables."""
