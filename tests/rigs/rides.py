"""One large job on a spot market through the kernel, beside the figures of the driver before, of its own."""

from __future__ import annotations

from sublet.perf.gridded import StoragePauses
from sublet.perf.parcae import measured_job
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet_lab.rides.ride import RideResult, Way, ride
from sublet_lab.studies.liveput.study import part_of

WAYS = {
    "checkpoint-restart": Way(Fastest(), StoragePauses),
    "greedy-live": Way(Fastest()),
    "liveput": Way(Liveput()),
}
# samples, dollars and changes: figures of the driver before (sim/one_job, as it was when the kernel learned grids)
ALONE = {
    ("checkpoint-restart", "bert", "hh"): (1603702.6449408138, 25.2297, 17),
    ("checkpoint-restart", "bert", "hl"): (1775195.7044823966, 27.2034, 11),
    ("checkpoint-restart", "bert", "lh"): (1093673.5370322645, 15.4377, 21),
    ("checkpoint-restart", "bert", "ll"): (1186338.703316082, 13.4334, 4),
    ("checkpoint-restart", "bert", "full"): (16680332.989887837, 250.8741, 163),
    ("checkpoint-restart", "gpt-1.5b", "hh"): (107545.23685829809, 25.2297, 17),
    ("checkpoint-restart", "gpt-1.5b", "hl"): (124158.48338410615, 27.2034, 11),
    ("checkpoint-restart", "gpt-1.5b", "lh"): (73255.2558297535, 15.4377, 21),
    ("checkpoint-restart", "gpt-1.5b", "ll"): (98820.37204637335, 13.4334, 4),
    ("checkpoint-restart", "gpt-1.5b", "full"): (1171346.157848395, 250.8741, 163),
    ("greedy-live", "bert", "hh"): (1731348.5568428454, 25.2297, 16),
    ("greedy-live", "bert", "hl"): (1869452.0967136004, 27.2034, 9),
    ("greedy-live", "bert", "lh"): (1228884.31865037, 15.4377, 17),
    ("greedy-live", "bert", "ll"): (1202306.0055999071, 13.4334, 4),
    ("greedy-live", "bert", "full"): (17992389.865007404, 250.8741, 139),
    ("greedy-live", "gpt-1.5b", "hh"): (128957.99931382522, 25.2297, 16),
    ("greedy-live", "gpt-1.5b", "hl"): (141121.85779297075, 27.2034, 9),
    ("greedy-live", "gpt-1.5b", "lh"): (96441.18450222579, 15.4377, 19),
    ("greedy-live", "gpt-1.5b", "ll"): (101733.78140043696, 13.4334, 4),
    ("greedy-live", "gpt-1.5b", "full"): (1389969.6841729637, 250.8741, 141),
    ("liveput", "bert", "hh"): (1736290.9519381665, 25.2297, 15),
    ("liveput", "bert", "hl"): (1871680.2711029642, 27.2034, 9),
    ("liveput", "bert", "lh"): (1237539.949129736, 15.4377, 15),
    ("liveput", "bert", "ll"): (1202306.0055999071, 13.4334, 4),
    ("liveput", "bert", "full"): (18023798.60524685, 250.8741, 134),
    ("liveput", "gpt-1.5b", "hh"): (133125.33272237028, 25.2297, 12),
    ("liveput", "gpt-1.5b", "hl"): (141506.8393620472, 27.2034, 9),
    ("liveput", "gpt-1.5b", "lh"): (99660.86471829025, 15.4377, 13),
    ("liveput", "gpt-1.5b", "ll"): (101733.78140043696, 13.4334, 4),
    ("liveput", "gpt-1.5b", "full"): (1415185.9984660775, 250.8741, 116),
}
RIDES = list(ALONE)


def in_the_kernel(
    way: str, model: str, hours: str, *, boot_s: float = 0.0, notice_s: float = 0.0, checked: bool = False
) -> RideResult:
    """A stretch of the market, with what was before it known; with a boot, all nodes take it."""
    job, record = measured_job(model), part_of(hours).record
    return ride(job, WAYS[way], record, boot_s=boot_s, notice_s=notice_s, of_running=False, checked=checked)


def main() -> None:
    """All thirty, as a table: `python -m tests.rigs.rides`."""
    for name in RIDES:
        ours, (samples, _, _) = in_the_kernel(*name), ALONE[name]
        way, model, hours = name
        print(
            f"{way:19} {model:9} {hours:5} {ours.samples:14,.3f} {samples:14,.3f} {ours.samples / samples - 1.0:+.1e}"
        )


if __name__ == "__main__":
    main()
