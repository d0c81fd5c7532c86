"""Questions of users to a running controller, and the answers."""
