"""What tiers of checkpoints cost and save, measured with real bytes on this machine beside the model of them."""
