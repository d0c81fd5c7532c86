"""How to split several pools among jobs that may not all change, with proof."""
