"""Which machines to rent for one job: `sublet advise`."""
