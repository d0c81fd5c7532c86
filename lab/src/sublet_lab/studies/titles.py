"""A line on each study, for the list: half of them import torch or scipy, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping

TITLES: Mapping[str, str] = {  # as in the studies themselves; one that is not here is imported for its title
    "boa": "Budget-optimal rental: theory, the published system, and price beside it",
    "cluster": "Every policy on 64 GPUs of one kind and of three, beside Pollux and Sia",
    "deepvm": "which machines to rent for one job: DeepVM's planner, and the adviser",
    "elastic-batch": (
        "batches that grow with the GPUs: twice the jobs done of the worst fixed batch, at every load sooner"
    ),
    "fleet": "Many jobs on spot: reclaims in the price of time, and spares lent",
    "grid-live": "grids of real processes on a recorded spot market agree with the simulator",
    "hosts": "hosts that share nothing: what is lost with one, and whether the result is right",
    "live": "real processes agree with the simulator, which foretells them",
    "liveput": ("one job on preemptible instances: Parcae's figures reproduced, and decisions on events beside them"),
    "mip": "everyone's progress maximised at once, beside three greedy allocators and a static one",
    "peers": "Pollux and Sia on their own clusters, beside what was published of them",
    "pollux-oracle": "the completion time of every job in the published runs of Tiresias and Optimus, reproduced",
    "regions": "one job with a deadline over regions: SkyNomad, Uniform Progress and the best",
    "tiers": "Tiers of checkpoints: writes, resumes and slowdown beside the model",
    "whole": "Jobs of mixed kinds on both markets with one budget, beside each system alone",
}
