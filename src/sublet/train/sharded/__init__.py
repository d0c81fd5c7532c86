"""A state in shards (`fully_shard`): saved by all ranks in torch's own format, loaded at any number of them."""
