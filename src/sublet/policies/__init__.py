"""Many jobs: one file per policy, each a value with one verb, `decide(snapshot) -> plan`."""
