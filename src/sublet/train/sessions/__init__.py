"""The loop of a script, and the strategies by which its workers train one model together."""
