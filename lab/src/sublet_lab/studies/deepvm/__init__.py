"""The claims about the adviser, beside DeepVM."""
