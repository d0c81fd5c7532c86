"""How does a controller live on a small rented machine, so that a laptop may be closed? Its state is there, too."""
