"""Who rents: one file per cloud, all behind `Provider`."""
