"""How fast a job that runs would go elsewhere, at another batch: from what it has measured of itself."""
