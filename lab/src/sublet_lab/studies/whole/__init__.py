"""The claim about the whole: jobs of mixed kinds, both markets and one budget, beside each published system alone."""
