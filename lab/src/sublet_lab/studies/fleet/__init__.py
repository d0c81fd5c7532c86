"""The claims about many jobs on spot and on-demand machines."""
