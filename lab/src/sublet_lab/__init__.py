"""The laboratory of Sublet: studies of published results, rival policies, simulated worlds, and hosts of the box.

    studies    one package or file for each published result that is run again beside ours; `sublet study`
    rivals     policies of published systems, and simple ones to compare with
    imports    published artifacts, and the files that the studies read of them; `sublet data`
    world      controllers and agents in virtual time under faults, from a seed
    hosts      what is lost with a host, over the box; `sublet study hosts`, `sublet demo --hosts`
    box        hosts that share nothing, on one machine: a cloud whose instances are namespaces
    gridded    grids of real processes beside the simulator; `sublet study grid-live`
    tiers      tiers of checkpoints, live; `sublet study tiers`
    grid       what a job in a grid survives, from a seed
    races      tasks of a controller in any order, from a seed
    budgets     budgets under faults, from a seed

Sublet finds it by entry points and imports nothing of it.
"""

__version__ = "0.1.0"
