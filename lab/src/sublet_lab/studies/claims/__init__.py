"""What the README claims, as data: run anew by `make claims`, which writes its tables."""
