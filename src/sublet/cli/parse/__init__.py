"""All texts of a command line to values: `values` one text, `offers` names of what is rented, `scenario` the rest."""
