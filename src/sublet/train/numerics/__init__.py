"""From a loss to an update: gradients, their sum and noise, rates, random numbers, memory."""
