"""Functions, classes and their members that nothing but tests uses: `make check` fails where there is one.

`vulture` compares names, so a name that is used anywhere counts as used. Variables and fields are left out: records
are written whole, as JSON, without a field being named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vulture import Vulture

__all__ = ["unused"]

HERE = Path(__file__).parents[1]
PATHS = ("src", "lab/src", "benchmarks")
FOR_TESTS = (
    "src/sublet/testing/",
    "lab/src/sublet_lab/memory_cloud.py",
    "lab/src/sublet_lab/forecasting/conformance.py",
    "lab/src/sublet_lab/trainers.py",
    "lab/src/sublet_lab/torn_disk.py",
    "lab/src/sublet_lab/walls.py",
    "lab/src/sublet_lab/notebook.py",
    "lab/src/sublet_lab/world/crash_points.py",
)
KINDS = {"class", "function", "method", "property"}
REGISTERED = [  # by what decorates it
    *(f"@*.{verb}" for verb in ("callback", "command", "delete", "exception_handler", "get", "post", "put")),
    "@*model_validator",
    "@*field_validator",
]
CALLED = {  # by whom -> what we define for it
    "python": "__getattr__",
    "asyncio": "_write_to_self _process_events call_at run_in_executor",
    "http.server and socketserver": "do_GET do_PUT handle_error log_message",
    "sqlite3": "executescript",
    "asyncssh": "begin_auth connection_requested public_key_auth_supported validate_public_key",
    "boto3": "describe_instances describe_spot_instance_requests describe_spot_price_history",
    "typer": "format_commands",
    "uvicorn": "capture_signals",
    "accelerate": "no_sync prepare_optimizer prepare_scheduler",
    "lightning": "is_global_zero on_exception on_train_end optimizer_step process_dataloader reduce_boolean_decision",
    "transformers": "_inner_training_loop",
    "entry points": "Arima RayEngine",
    "a user's script (session.md)": "Mlflow TensorBoard Wandb",
    "a user's script (performance-models.md)": "FixedBatch NoiseCurve choose_batch fit_amdahl fit_power_law fit_ring",
}
TO_BE_MENDED = {  # gets shorter, never longer
    "forecast_error",
    "momentum",
    "stat_efficiency",
    "steps_in_epoch",
    "with_job",
    "work_left",
}


def unused(tree: Path) -> list[str]:
    """Each with its place."""
    found = Vulture(
        ignore_names=[name for names in CALLED.values() for name in names.split()], ignore_decorators=REGISTERED
    )
    found.scavenge([str(tree / path) for path in PATHS])
    places = {item: item.filename.relative_to(tree).as_posix() for item in found.get_unused_code() if item.typ in KINDS}
    return [
        f"{place}:{item.first_lineno} {item.typ} {item.name}"
        for item, place in places.items()
        if not place.startswith(FOR_TESTS) and item.name not in TO_BE_MENDED
    ]


if __name__ == "__main__":
    if found := unused(HERE):
        sys.exit("\n".join(["only tests use these, or nothing does:", *found]))
