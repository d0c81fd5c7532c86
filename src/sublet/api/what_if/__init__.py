"""What will be, and what would be with more money: futures of a controller's state, lived in a process of their own."""
