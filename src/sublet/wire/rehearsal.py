"""Orders of a rehearsal to its workers, and the files of their observations: in one folder, named by a variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

REHEARSAL = "SUBLET_REHEARSAL"  # the folder of this run
CUE, RESTART, COARSE = "cue.json", "restart", "coarse"
SAMPLED = 64  # numbers of each parameter that are written after each step, beside its sum and its length


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """One run of a script: how long it is, and what happens to it."""

    folder: str
    steps: int
    workers: int = 1
    seed: int = 0  # another one than 0: the script draws other numbers, from weights that differ by a rounding
    coarse: bool = False  # it is a rounding of half precision
    kill_at: int = 0  # step before which rank 0 is killed; 0 = never
    kill_after_s: float = 0.0  # the same, of a script that tells no steps
    restart_at: int = 0  # step before which all are killed, with a checkpoint of two steps earlier; 0 = never

    def write(self) -> None:
        """For the workers of this run."""
        folder = Path(self.folder)
        folder.mkdir(parents=True)
        (folder / CUE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def claim(self, what: str) -> bool:
        """Whether this happens for the first time in this run."""
        try:
            (Path(self.folder) / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @property
    def was_coarse(self) -> bool:
        """Whether something was computed in half precision, as `claim(COARSE)` said."""
        return (Path(self.folder) / COARSE).exists()

    @property
    def has_restarted(self) -> bool:
        """All were killed, or are being so."""
        return (Path(self.folder) / RESTART).exists()

    def begin_restart(self) -> None:
        """From now on no newcomer is killed."""
        (Path(self.folder) / RESTART).touch()

    def step_file(self, step: int) -> Path:
        """The state after so many steps."""
        return Path(self.folder) / f"step-{step:06d}.npz"

    def opened_file(self, worker_id: str) -> Path:
        """Names of files that this worker has opened to write."""
        return Path(self.folder) / f"opened-{worker_id}"


def cue_here() -> Cue | None:
    """That of this process; None = it is no rehearsal."""
    folder = os.environ.get(REHEARSAL, "")
    return Cue(**json.loads((Path(folder) / CUE).read_text(encoding="utf-8"))) if folder else None


def other_seed() -> int:
    """To be added to the seed of what the script draws, not of the order of samples."""
    cue = cue_here()
    return 0 if cue is None else cue.seed
