"""The claims of the README, in its order."""

from __future__ import annotations

from sublet.perf.parcae import PARCAE_MODELS
from sublet_lab.studies.claims.claim import Claim, Data, Figure, Source, Take

FREELY = "speeds, and sizes as said; all speeds, no sizes, moves as freely"
LEARNING = "sizes as said, and what it learns of speeds; what it learns of speeds, no sizes"
CLUSTERS = (
    ("64 T4", "64 T4s", "pollux"),
    ("64 T4", "64 T4s", "sia"),
    ("64 mixed", "64 GPUs of three kinds", "sia"),
)


def _by_sizes(cluster: str, rival: str, way: str) -> tuple[Figure, ...]:
    """`price` by what it is told of sizes, over a rival that is free, or learns."""
    told = {"declared": "price", "learned by group": "price, sizes learned", "none": "price, no sizes"}
    return tuple(
        Figure(check=f"{cluster}: mean time of {ours} over {rival}, {way}", label=label) for label, ours in told.items()
    )


def _worst(cluster: str) -> tuple[Figure, ...]:
    return (
        Figure(check=f"{cluster}: p99 of price* over *", label="p99", take=Take.MOST),
        Figure(check=f"{cluster}: GPU-hours of price* over *", label="GPU-hours", take=Take.MOST),
    )


CLUSTER = tuple(
    Claim(
        what=f"`price` on {name}, mean time by what it is told of sizes{more}",
        over=f"`{rival}`",
        knows=knows,
        study="cluster",
        figures=_by_sizes(f"{cluster}{setting}", rival, way),
        source=Source.REBUILD,
        data=Data.HELD_OUT,
    )
    for setting, way, more, knows in (
        ("", "free", "", FREELY),
        (", speeds learned", "learns", ", where all learn speeds", LEARNING),
    )
    for cluster, name, rival in CLUSTERS
) + tuple(
    Claim(
        what=f"the same on {name}{more}: p99 and GPU-hours, the worst of all rivals and of all that it is told",
        over=rivals,
        knows=knows,
        study="cluster",
        figures=_worst(f"{cluster}{setting}"),
        source=Source.REBUILD,
        data=Data.HELD_OUT,
    )
    for setting, more, knows in (("", "", FREELY), (", speeds learned", ", where all learn speeds", LEARNING))
    for cluster, name, rivals in (
        ("64 T4", "64 T4s", "`pollux`, `sia`"),
        ("64 mixed", "64 GPUs of three kinds", "`sia`"),
    )
)

REBUILT = (
    Claim(
        what="completion times of `tiresias` and `optimus` that are equal to the second",
        over="the artifact of Pollux",
        study="pollux-oracle",
        figures=(
            Figure(check="completion times that are equal", digits=0),
            Figure(check="jobs compared", label="of", digits=0),
        ),
        source=Source.RERUN,
    ),
    Claim(
        what="the rebuilt `pollux` and `sia` at home: mean time",
        over="their own simulators",
        knows="the same",
        study="peers",
        figures=(
            Figure(check="pollux: mean time, workloads 1-4", label="pollux", digits=0),
            Figure(check="sia, philly: mean time", label="sia, philly", digits=3),
            Figure(check="sia, saturn: mean time", label="sia, saturn", digits=3),
        ),
        source=Source.RERUN,
    ),
    Claim(
        what="DeepVM's choices and scores, 98 budgets: rents and scores that are equal",
        over="its paper and stored results",
        study="deepvm",
        figures=(
            Figure(check="3 USD/h: rent of *", label="rents", take=Take.HELD),
            Figure(check="10 USD/h: score of *", label="scores", take=Take.HELD),
        ),
        source=Source.PAPER,
    ),
    Claim(
        what="Parcae's samples, all models and hours: ideal and checkpoint to the sample, truth 0.1 %, parcae 2 %",
        over="its published code",
        study="liveput",
        figures=tuple(
            Figure(check=f"*/*: {name}", label=name, take=Take.HELD)
            for name in ("ideal", "checkpoint-restart", "parcae-truth", "parcae")
        ),
        source=Source.RERUN,
    ),
)

RENTAL = (
    Claim(
        what="budget-optimal rental simulated: dollars, and mean time in standard errors off theory, the worst case",
        over="the formula",
        knows="arrivals, sizes, speeds",
        study="boa",
        figures=(
            Figure(check="case *: GPUs used", label="dollars within 1 %", take=Take.HELD),
            Figure(check="case *: mean time off theory, standard errors", label="off", take=Take.MOST),
        ),
        source=Source.PAPER,
    ),
    Claim(
        what="`price` with a load 30 % above / below the forecast: spend over budget by day 30, and mean time",
        over="the clairvoyant",
        knows="a wrong forecast; all jobs to come",
        study="boa",
        figures=tuple(
            Figure(check=f"load {load} times the forecast: {what}", label=f"{label} at {load}")
            for load in ("1.3", "0.7")
            for what, label in (
                ("spend over budget by day 30", "spend"),
                ("mean time over clairvoyant constant price", "time"),
            )
        ),
        source=Source.REBUILD,
    ),
    Claim(
        what="a total budget, 1,000 workloads with price jumps and spot losses: overspent, and left over at the median",
        study="boa",
        figures=(
            Figure(check="purse: overspent in * random workloads", digits=0),
            Figure(check="purse: left over at the median", label="left", digits=1),
        ),
    ),
    Claim(
        what="`price` under a quota of 120 % of the budget: mean time",
        over="`boa`",
        knows="the same: true rates of arrival, sizes, speeds",
        study="boa",
        figures=(Figure(check="quota of 36 GPUs: mean time of price over boa"),),
        source=Source.REBUILD,
    ),
    Claim(
        what="`price` on the first Pollux workload at equal dollars, the worst of five budgets: mean time",
        over="`boa`, `boa-ideal`",
        knows="the same: true rates of arrival, sizes, speeds",
        study="boa",
        figures=tuple(
            Figure(check=f"Pollux workload at *: mean time of price over {rival}, *", label=rival, take=Take.MOST)
            for rival in ("boa", "boa-ideal")
        ),
        source=Source.REBUILD,
        data=Data.TUNED,
    ),
    Claim(
        what="`price` on tight budgets, 1.1 to 2 times the least that the work costs, the worst of five: mean time",
        over="all that `boa` or `boa-ideal` can do for as much money, at 22 aims",
        knows="the same: true rates of arrival, sizes, speeds",
        study="boa",
        figures=tuple(
            Figure(
                check=f"at * times the least: mean time of price over the envelope of {rival}",
                label=rival,
                take=Take.MOST,
            )
            for rival in ("boa", "boa-ideal")
        ),
        source=Source.REBUILD,
        data=Data.HELD_OUT,
    ),
    Claim(
        what="`price` as it ships where changes cost restarts, at its own dollars, the worst of six: mean time",
        over="the exact program",
        knows="a forecast that it trusts like any; all that is to come",
        study="boa",
        figures=(Figure(check="restarts *: price over exact DP at the same dollars", take=Take.MOST, digits=3),),
    ),
    Claim(
        what="many jobs on spot and on demand, `price` at equal dollars, the worst of 12: mean time",
        over="the better of all spot and all on demand",
        knows="the same; the hazard is that of the record that is replayed",
        study="fleet",
        figures=(Figure(check="*: time over the better pure choice, equal dollars, worst budget", take=Take.MOST),),
    ),
    Claim(
        what="jobs of mixed kinds, both markets, one budget: by how much `price` is faster at equal dollars",
        over="the best of ten published pairs, all spot and all on demand",
        knows="the same: sizes, speeds, arrivals",
        study="whole",
        figures=(Figure(check="price faster than the best of all others, mean", digits=1),),
        source=Source.REBUILD,
    ),
)

SPOT = (
    Claim(
        what="`liveput` on Parcae's trace: samples, the worst hour of each model",
        over="the oracle",
        knows="what has happened; the whole trace",
        study="liveput",
        figures=tuple(
            Figure(check=f"{model}/*: liveput, percent of the oracle", label=model, take=Take.LEAST, digits=1)
            for model in ("bert", "resnet152", "gpt-1.5b", "gpt-6.7b")
        ),
        data=Data.TUNED,
    ),
    Claim(
        what="`liveput` on all traces: samples ahead, the worst case",
        over="`greedy-live`, `parcae`",
        knows="the same",
        study="liveput",
        figures=tuple(
            Figure(check=f"*: least that liveput is ahead of {rival}", label=rival, take=Take.LEAST)
            for rival in ("greedy-live", "parcae")
        ),
        source=Source.REBUILD,
        data=Data.TUNED,
    ),
    Claim(
        what="the same with losses announced, of what it makes without notice: the worst",
        over="itself",
        study="liveput",
        figures=(Figure(check="*: with notice, of what it makes without, *", take=Take.LEAST, digits=1),),
        data=Data.TUNED,
    ),
    Claim(
        what="`liveput`: samples over a rival's, mean of four whole traces, the least of four models",
        over="`greedy-live`, `parcae`",
        knows="the same",
        study="liveput",
        figures=tuple(
            Figure(check=f"*: samples of liveput over {rival}, mean *", label=rival, take=Take.LEAST, digits=3)
            for rival in ("greedy-live", "parcae")
        ),
        source=Source.REBUILD,
        data=Data.TUNED,
    ),
    Claim(
        what="samples per dollar where a sample is worth 1.25 of what it costs at the least",
        over="`parcae`, which makes more samples",
        knows="the same",
        study="liveput",
        figures=tuple(
            Figure(check=f"{model}: samples per dollar of parcae's, *", label=model) for model in PARCAE_MODELS
        ),
        source=Source.REBUILD,
        data=Data.TUNED,
    ),
    Claim(
        what="the same, the mean of four hours that share no minute",
        over="`parcae`",
        knows="the same",
        study="liveput",
        figures=tuple(
            Figure(check=f"{model}: samples per dollar over parcae's, mean *", label=model) for model in PARCAE_MODELS
        ),
        source=Source.REBUILD,
        data=Data.TUNED,
    ),
    Claim(
        what="at least as many samples for how many times fewer dollars",
        over="`parcae`",
        knows="the same",
        study="liveput",
        figures=tuple(Figure(check=f"{model}: parcae's dollars over those *", label=model) for model in PARCAE_MODELS),
        source=Source.REBUILD,
        data=Data.TUNED,
    ),
    Claim(
        what="the default forecaster, which is persistence wherever no other has proved better: its error is not above",
        over="persistence",
        knows="the same past",
        study="liveput",
        figures=(Figure(check="skilled less persistence, error on *", label="traces", take=Take.HELD),),
        data=Data.TUNED,
    ),
)

DEADLINE = (
    Claim(
        what="one job with a deadline over regions, probes and egress paid, `regions`: windows in time; cost",
        over="the best in hindsight",
        knows="prices, and what it has asked for; the whole record",
        study="regions",
        figures=(
            Figure(check="*: deadlines kept", label="in time", take=Take.LEAST),
            *(Figure(check=f"{scene}: cost / best", label=scene, digits=3) for scene in ("v100", "h100")),
        ),
        data=Data.HELD_OUT,
    ),
    Claim(
        what="by how many times others cost more, the lesser of both records",
        over="SkyNomad, Uniform Progress",
        knows="the same",
        study="regions",
        figures=tuple(
            Figure(check=f"*: {rival} / regions", label=rival, take=Take.LEAST, digits=3)
            for rival in ("skynomad (rebuilt)", "uniform progress")
        ),
        source=Source.REBUILD,
        data=Data.HELD_OUT,
    ),
)

FORETOLD = (
    Claim(
        what="step time of a (model, GPU) pair that is left out: median error; what a choice by it costs more, median",
        over="measured",
        study="deepvm",
        figures=(
            Figure(check="leave-one-out: median error of step time", digits=1),
            Figure(check="leave-one-out: median extra cost of choosing by predictions", digits=1),
        ),
        data=Data.TUNED,
    ),
    Claim(
        what="the demonstration in a hurry with real processes: makespan, dollars",
        over="the simulator",
        study="live",
        figures=(
            Figure(check="makespan, live over simulated", label="makespan"),
            Figure(check="dollars, live over simulated", label="dollars"),
        ),
    ),
    Claim(
        what="scenarios foretold from a profile, then run: makespan, the least and the most",
        over="foretold",
        study="live",
        figures=(
            Figure(check="*: makespan, live over foretold", take=Take.LEAST),
            Figure(check="*: makespan, live over foretold", take=Take.MOST),
        ),
    ),
)

CLAIMS = (*CLUSTER, *REBUILT, *RENTAL, *SPOT, *DEADLINE, *FORETOLD)
