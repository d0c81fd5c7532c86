"""Work of verbs between reading options and printing: shared parts, or parts too long for one verb."""
