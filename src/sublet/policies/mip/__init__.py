"""Most progress of all jobs together, as an integer program (the elastic allocator)."""
