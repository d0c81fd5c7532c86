"""Sessions behind frameworks with a training loop of their own, and trackers of session logs.

A package for each framework: `sublet.integrations.transformers`, `.lightning`, `.accelerate`; a module for each
tracker: `.tensorboard`, `.mlflow`, `.wandb`. Each imports its library, so nothing here imports one of them. Shared by
frameworks:

    alone.py    hides torchrun's variables: the framework sees one process, the session knows the others
    data.py     checks of datasets
    pinned.py   checks of a framework's private names
"""
