"""Machines of one's own, reached by ssh: a lab's, or four boxes under a desk."""
