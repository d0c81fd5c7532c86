"""Admit first come first served; GPUs and batches go where jobs scale best."""
