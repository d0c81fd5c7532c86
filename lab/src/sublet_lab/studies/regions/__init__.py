"""One job with a deadline, and regions to run it in: what it costs over the best in hindsight, and beside others."""
