"""Our claims: one study per published result that we reproduce and beat, each ending in checks that can fail."""
