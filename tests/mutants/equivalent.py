"""Changes that change nothing anybody could see, each with the reason: they are drawn, told, and not counted.

Only what is the same for every input is here. What merely is not tested, or is only slower, lives.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.draw import Mutant, path_of

__all__ = ["EQUIVALENT", "Equivalent", "why_equivalent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """In a line of a file, `old` becomes `text`."""

    file: str  # below src/sublet
    line: str  # without what is left and right of it
    old: str
    text: str
    why: str

    def fits(self, mutant: Mutant) -> bool:
        """Whether it is this one."""
        if (mutant.file, mutant.old.strip(), mutant.text.strip()) != (self.file, self.old, self.text):
            return False
        lines = path_of(self.file).read_text(encoding="utf-8").splitlines()
        return lines[mutant.line - 1].strip() == self.line


def why_equivalent(mutant: Mutant) -> str:
    """The reason; empty where it is not among them."""
    if mutant.old.startswith("assert_never("):
        return CLOSED
    return next((each.why for each in EQUIVALENT if each.fits(mutant)), "")


ROWS_ALIKE = "rows that repeat by a stride of 0 are all the same: one of them, two or all say the same"
SIZES = "size_JC = problem.size_JC[:1] if problem.size_JC.strides[0] == 0 else problem.size_JC"
NOTHING_MISSING = "what is missing is never above 0 here, and once it is 0 the rest of the loop takes 0 from each node"
CLOSED = "the union is closed: the type checker proves that nothing else comes here"
TWICE = "times are compared first, and twice all of them are in the same order; rents decide between equals as before"
NO_PLACE = "without a place there is none whose pace is asked for"
ONE_MORE_END = "one end more than there are jobs, and nobody asks for it"
IN_NO_WAY = "more of a group than there are come about in 0 ways, and more than may be gone are passed over"
WHOLE = "what HiGHS gives back of a variable that is 0 or 1 is within a millionth of that"
NOTHING_HELPS = "whom nothing helps that there is room for keeps what it has, looked at again or not"
NEVER_BEST = "what may not be had adds -inf to every total, which no total is less than"
ANSWERED = "where nothing is missing it was answered before"
ASKED_AGAIN = "who holds as many as are wanted rents none: the loop asks the same"
MASKED = "where it never ends this only stands in, and is not looked at"
NOT_SURE = "who has no column is not sure of any, and where one is not sure none of this is looked at"
NO_STEP = "a step of 0 is given back as 0 either way"
ALL_KEPT = "where all are kept, to take those that are kept is to take all"
BEFORE_ALL = "no number is below 0: the first differs from whatever is below that"
UNCLEAR = "UNCLEAR = (NOTHING, False, 1.0, 0.0)"
EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(file="solve/knapsack/greedy.py", line=SIZES, old="1", text="2", why=ROWS_ALIKE),
    Equivalent(file="solve/knapsack/greedy.py", line=SIZES, old="0", text="1", why=ROWS_ALIKE),
    Equivalent(file="kernel/cluster.py", line="break", old="break", text="pass", why=NOTHING_MISSING),
    Equivalent(file="kernel/cluster.py", line="if missing < 0:", old="<", text="<=", why=ANSWERED),
    Equivalent(
        file="kernel/supply.py", line="if cluster.held[offer_id] < wanted:", old="<", text="<=", why=ASKED_AGAIN
    ),
    Equivalent(file="solve/phases.py", line="pay_CI = 1.0 + 1j * phases.rent_CI", old="1.0", text="2.0", why=TWICE),
    Equivalent(
        file="solve/mip/moves.py",
        line="first_J = np.searchsorted(job_V, np.arange(len(gain_JC) + 1)).tolist()",
        old="1",
        text="2",
        why=ONE_MORE_END,
    ),
    Equivalent(
        file="solve/expectation.py",
        line="counts = [row for row in product(*(range(min(n, most) + 1) for n in many_G)) "
        "if SEVERAL <= sum(row) <= most]",
        old="1",
        text="2",
        why=IN_NO_WAY,
    ),
    Equivalent(
        file="solve/mip/highs.py",
        line="taken_V = np.array(solver.getSolution().col_value) > 0.5  "
        "# noqa: PLR2004 - it is 0 or 1 but for rounding",
        old=">",
        text=">=",
        why=WHOLE,
    ),
    Equivalent(
        file="solve/phases.py",
        line="return np.where(never_CI, np.inf, pay_CI * np.where(never_CI, 0.0, time_CI))",
        old="0.0",
        text="1.0",
        why=MASKED,
    ),
    Equivalent(
        file="solve/lookahead.py",
        line="return np.where(np.isinf(pause_CC), np.inf, rate_C * np.where(np.isinf(pause_CC), 0.0, pause_CC))",
        old="0.0",
        text="1.0",
        why=MASKED,
    ),
    Equivalent(
        file="policies/price/congestion.py",
        line="continue  # there is as much room as there was",
        old="continue",
        text="pass",
        why=NOTHING_HELPS,
    ),
    Equivalent(
        file="solve/knapsack/rows.py",
        line="if gain > -np.inf and size < count:",
        old=">",
        text=">=",
        why=NEVER_BEST,
    ),
    Equivalent(
        file="solve/knapsack/greedy.py",
        line="return step if step > 0 and bool((step_JS == step).all()) else 0",
        old=">",
        text=">=",
        why=NO_STEP,
    ),
    Equivalent(file="solve/curves.py", line="if len(kept_V) < len(config_V):", old="<", text="<=", why=ALL_KEPT),
    Equivalent(
        file="solve/knapsack/core.py",
        line="begins = [*np.flatnonzero(np.diff(changes.job_O, prepend=-1)).tolist(), len(changes)]",
        old="1",
        text="2",
        why=BEFORE_ALL,
    ),
    Equivalent(
        file="policies/boa/policy.py",
        line="np.add.reduceat(app.hours_EC, np.flatnonzero(np.diff(block_E, prepend=-1)), axis=0)",
        old="1",
        text="2",
        why=BEFORE_ALL,
    ),
    Equivalent(file="policies/price/settled.py", line=UNCLEAR, old="False", text="True", why=NOT_SURE),
    Equivalent(file="policies/price/settled.py", line=UNCLEAR, old="1.0", text="2.0", why=NOT_SURE),
    Equivalent(file="policies/price/settled.py", line=UNCLEAR, old="0.0", text="1.0", why=NOT_SURE),
    Equivalent(
        file="policies/regions/worth.py",
        line="self._least_h = min((place.left_h for place in places), default=0.0)",
        old="0.0",
        text="1.0",
        why=NO_PLACE,
    ),
)
