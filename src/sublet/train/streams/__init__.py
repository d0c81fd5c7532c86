"""Streams (`IterableDataset`): read by a fixed number of virtual shards, dealt to as many workers as there are."""
