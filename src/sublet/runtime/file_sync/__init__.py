"""How do the files of a job get to a node that shares no disk with the controller? By what is in them."""
