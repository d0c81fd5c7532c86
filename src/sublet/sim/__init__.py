"""World 1: virtual time. The same kernel and the same policies as in the real world, thousands of times faster."""
