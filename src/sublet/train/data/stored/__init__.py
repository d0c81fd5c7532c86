"""Samples where they are: a stream of what lies under a URI, read ahead by threads, from any sample on."""
