"""How fast: speed models, batch choice, fitting, memory, and what a restart costs."""
