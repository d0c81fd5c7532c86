"""One job after the other over regions: spot where it is cheap enough to be worth the wait, and every deadline kept."""
