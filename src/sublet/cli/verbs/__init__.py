"""One file per verb. Whatever takes time to import is imported inside, so that help answers at once."""
