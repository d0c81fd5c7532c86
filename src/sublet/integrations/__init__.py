"""Sessions behind frameworks that bring a training loop of their own, and trackers of what sessions log.

A package for each framework: `sublet.integrations.transformers`, `.lightning`, `.accelerate`; a module for each
tracker: `.tensorboard`, `.mlflow`, `.wandb`. Each imports its library, so nothing here imports one of them. What
frameworks share:

    alone.py    a framework is to see one process: the session is what knows of the others
    data.py     what they take of datasets
    pinned.py   names of a framework that it may move without a word
"""
