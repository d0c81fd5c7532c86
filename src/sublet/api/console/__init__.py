"""The page in a browser: files that are sent as they are, and the way in. What it shows it asks of `/v1/...`."""
