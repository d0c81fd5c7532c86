"""Worker counts by steps, in three variants: where they add most speed, save most time, or without shrinking."""
