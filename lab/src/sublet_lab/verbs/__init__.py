"""Verbs of the command line that come with the laboratory: `sublet study` and `sublet data`."""
