"""This machine as a cloud: process groups as nodes, under a replayed spot market."""
