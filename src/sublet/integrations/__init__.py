"""Sessions behind frameworks with a training loop of their own, and trackers of session logs.

A package for each framework: `sublet.integrations.transformers`, `.lightning`, `.accelerate`; a module for each
tracker: `.tensorboard`, `.mlflow`, `.wandb`. Each imports its library, so nothing here imports one of them. Checks that
frameworks share are in `checks.py`.
"""
