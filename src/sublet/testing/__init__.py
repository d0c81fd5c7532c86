"""Public test helpers, used by our own tests first: values, kernels, real jobs, and suites that a plug-in must pass.

    values         jobs, offers and markets whose facts do not matter
    strategies     the same, drawn by hypothesis
    driver         a kernel driven by hand, with every law checked after every event
    paced          a training script whose computing is slept, and real jobs of it
    rigs           clouds with real processes, seen from outside; what a rig of yours must be able to do
    conformance    what every policy, provider, engine and store must do, as suites to inherit

Nothing of the product imports this package. `pytest` and `hypothesis` come with the extra `testing`.
"""
