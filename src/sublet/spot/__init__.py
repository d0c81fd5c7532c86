"""How one large job makes use of a spot market: copies x stages on preemptible instances (`sublet spot`)."""
