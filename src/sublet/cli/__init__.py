"""One file per verb. Whatever takes time to import is imported inside the verb, so that help answers at once."""
