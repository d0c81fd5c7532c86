"""How to split one capacity among jobs, with proof."""
