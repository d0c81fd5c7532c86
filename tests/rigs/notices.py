"""What boots and notices leave of the samples of liveput, in percent: `python -m tests.rigs.notices`."""

from __future__ import annotations

from functools import cache

from tests.rigs.rides import in_the_kernel

# Figures of the driver before, of its own (sim/one_job), in percent of its samples without notice: as it was, where who
# holds all that there is never waits for a boot; and on the same record with every node that comes 45 s later.
ALONE = {
    ("bert", 0.0): {0.0: 100.0, 30.0: 100.54, 120.0: 100.68},
    ("bert", 45.0): {0.0: 99.52, 30.0: 100.16, 120.0: 100.22},
    ("gpt-1.5b", 0.0): {0.0: 100.0, 30.0: 100.81, 120.0: 101.05},
    ("gpt-1.5b", 45.0): {0.0: 99.67, 30.0: 100.48, 120.0: 100.70},
}


@cache
def undisturbed(model: str) -> float:
    """Samples without boots and notices."""
    return in_the_kernel("liveput", model, "full").samples


def percent(model: str, boot_s: float, notice_s: float) -> float:
    """Of these, with them."""
    ours = in_the_kernel("liveput", model, "full", boot_s=boot_s, notice_s=notice_s)
    return 100.0 * ours.samples / undisturbed(model)


def main() -> None:
    """As a table."""
    for (model, boot_s), theirs in ALONE.items():
        for notice_s, alone in theirs.items():
            times = f"boot {boot_s:2.0f} s, notice {notice_s:3.0f} s"
            print(f"{model:9} {times}: kernel {percent(model, boot_s, notice_s):6.2f}, alone {alone:6.2f}", flush=True)


if __name__ == "__main__":
    main()
