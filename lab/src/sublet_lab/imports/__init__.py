"""Which published artifacts the studies read, and how a clone of one becomes the files that they read."""
