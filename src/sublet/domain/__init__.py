"""Values of the domain: frozen, and checked when they are made."""
