"""`sublet study hosts`: three ways to train on hosts that share nothing, and what happens to hosts."""
