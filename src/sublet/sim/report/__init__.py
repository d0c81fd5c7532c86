"""Reports of a run: the table, the plots, one page that holds it all, and the figures as files."""
