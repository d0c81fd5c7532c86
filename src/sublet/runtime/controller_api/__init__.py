"""Questions and wishes of users to a running controller, and its answers."""
