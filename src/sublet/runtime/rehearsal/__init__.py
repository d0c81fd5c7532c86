"""Whether a script is elastic, by running it: at one worker, at two, and with workers killed."""
