"""How one large job rides a spot market: copies x stages on preemptible instances (`sublet spot`)."""
