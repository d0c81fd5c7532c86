"""Pollux's speeds: its seven parameters fitted, and its simulator's tables."""
