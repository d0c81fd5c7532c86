"""Cost and savings of tiers of checkpoints, measured with real bytes on this machine beside the model of them."""
