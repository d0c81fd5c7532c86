"""The page in a browser: files that are sent as they are, and the way in. Its content comes from `/v1/...`."""
