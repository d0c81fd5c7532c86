"""What verbs do between reading their options and printing: what several share, or what is too long for one."""
