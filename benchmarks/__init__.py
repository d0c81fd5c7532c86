"""Speed, measured in one run: `make bench`."""
