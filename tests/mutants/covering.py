"""Which tests are to see a fault in a file: its own first, so that most die soon."""

from __future__ import annotations

from tests.figures import HERE

__all__ = ["COVERING", "covering"]

GOLDEN = "tests/golden"  # last: it takes longest, and sees most
POLICIES, RIVALS, CONTROLLER = "tests/unit/policies", "tests/unit/lab/rivals", "tests/unit/runtime/controller"
PROPERTIES = (*(f"tests/property/test_{name}.py" for name in ("kernel_*", "cores", "blocks", "mixed_pools", "purses")),)
COVERING: dict[str, tuple[str, ...]] = {  # by the longest path that fits, as Mutant.file has it
    "kernel/": ("tests/unit/kernel", *PROPERTIES, "tests/simulation", "tests/conformance/test_policies.py", GOLDEN),
    "kernel/ledger.py": (
        *("tests/unit/kernel/test_ledger.py", "tests/property/test_kernel_ledger.py", "tests/unit/kernel"),
        *("tests/property/test_bills.py", "tests/simulation/test_billing_models.py", GOLDEN),
    ),
    "solve/": ("tests/unit/solve", "tests/property/test_solve_*.py", "tests/unit/rental", f"{POLICIES}/mip", GOLDEN),
    "solve/expectation.py": ("tests/unit/solve/test_expectation.py", "tests/property/test_liveput.py"),
    "solve/lookahead.py": ("tests/unit/solve/test_lookahead.py", "tests/property/test_liveput.py"),
    "policies/": (POLICIES, RIVALS, GOLDEN),
    "policies/boa/": (f"{POLICIES}/boa", "tests/unit/lab/studies/boa", GOLDEN),
    "policies/elastic_batch/": (f"{POLICIES}/elastic_batch", "tests/unit/lab/studies/test_elastic_batch.py", GOLDEN),
    "sublet_lab/rivals/": (RIVALS, POLICIES, GOLDEN),
    "sublet_lab/rivals/greedy/": (f"{RIVALS}/test_greedy.py", "tests/unit/lab/studies/test_mip_study.py", GOLDEN),
    "policies/liveput/": (f"{POLICIES}/test_grid_policies.py", "tests/property/test_liveput.py", GOLDEN),
    "policies/mip/": (f"{POLICIES}/mip", "tests/unit/lab/studies/test_mip_study.py", GOLDEN),
    "policies/price/": (f"{POLICIES}/price", "tests/simulation", "tests/property/test_price_*.py", GOLDEN),
    "policies/regions/": (
        f"{POLICIES}/regions",
        "tests/property/test_regions.py",
        "tests/unit/lab/studies/regions",
        GOLDEN,
    ),
    "sublet_lab/rivals/sia/": (f"{RIVALS}/sia", "tests/unit/lab/studies/test_peers.py", GOLDEN),
    "runtime/controller/money/bill.py": (
        *(f"{CONTROLLER}/test_bill*.py", "tests/property/test_bills.py"),
        *(f"{CONTROLLER}/test_{name}.py" for name in ("spent", "lost_time", "thrown_away", "tiers", "restarts")),
        *(f"{CONTROLLER}/test_{name}.py" for name in ("compaction", "wild_reports", "shelving")),
    ),
    "train/data/samples.py": ("tests/unit/train/data/test_samples.py", "tests/unit/train/data/test_loading.py"),
}


def covering(file: str) -> list[str]:
    """Paths that exist, each once, in order."""
    longest = max((path for path in COVERING if file.startswith(path)), key=len)
    found: list[str] = []
    for pattern in COVERING[longest]:
        paths = sorted(HERE.glob(pattern)) if "*" in pattern else [HERE / pattern]
        found += [path.relative_to(HERE).as_posix() for path in paths if path.exists()]
    return list(dict.fromkeys(found))
