"""EC2: instances, prices, notices and rights."""
