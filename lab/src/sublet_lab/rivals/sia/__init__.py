"""Kind and number of GPUs by goodput, as one integer program (Sia, SOSP 2023)."""
