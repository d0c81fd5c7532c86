"""Finds Pollux's seven parameters from measured step times.

The residuals are those of Pollux (logarithm of the compute time, logarithm of the step time), and so are the rules for
what was not observed. Two things differ. The sum of squares is minimised instead of the sum of two root mean squares,
which has no derivative at a perfect fit. The pull towards small gamma and small slopes is a thousand times weaker, so
that it decides between equally good fits and does not bend good ones.

Rows may have errors: a less certain row weighs less. From them follows how far off a prediction may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.perf.steptime import PolluxStep
from sublet.solve.arrays import Bools, Floats

LEAST, MOST = 1e-9, 1e4  # seconds; bounds of the six times
PULL_GAMMA, PULL_SLOPE = 1e-6, 1e-5  # weights of the squared penalties
NETWORK_PRIOR = 1.1  # an unseen network is at least this much slower than the inside of a node
STARTS = (1.2, 2.0, 5.0)  # gamma: the loss may have more than one valley
UNSURE = 1.0  # of the logarithm of a parameter, and of gamma, before any row: so much at most is said of each
ALPHA_C, BETA_C, ALPHA_N, BETA_N, ALPHA_R, BETA_R, GAMMA = range(7)


@dataclass(frozen=True, slots=True, eq=False)
class PolluxFit:
    """The parameters, and how sure they are."""

    model: PolluxStep
    _theta: Floats
    _free: Bools
    _covariance: Floats  # of those that the rows say something about

    def error(self, gpus: Floats, nodes: Floats, local: Floats) -> Floats:
        """The standard error of the logarithm of the step time there, as far as it follows from the rows."""
        asked = _Problem(gpus, nodes, local, np.ones(len(gpus)), np.full(len(gpus), np.nan))
        slopes = asked.slopes(self._theta)[1][:, self._free]
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", slopes, self._covariance, slopes)))


def fitted_pollux(gpus: Floats, nodes: Floats, local: Floats, step_s: Floats, compute_s: Floats) -> PolluxStep:
    """The parameters with the least squared error; `compute_s` is NaN where it was not measured."""
    problem = _Problem(gpus, nodes, local, step_s, compute_s)
    return problem.model(_solved(problem)[0])


def pollux_fit(
    gpus: Floats, nodes: Floats, local: Floats, step_s: Floats, compute_s: Floats, error: Floats
) -> PolluxFit:
    """The same of rows that are off by about `error`, each as a part of itself, with what is known then."""
    problem = _Problem(gpus, nodes, local, step_s, compute_s, error)
    theta, free = _solved(problem)
    rows = 2 * len(gpus)  # without the penalties, which know nothing
    slopes = problem.jacobian(theta)[:rows, free] * np.sqrt(np.sum(error**-2.0))
    covariance = np.linalg.inv(slopes.T @ slopes + np.eye(int(free.sum())) / UNSURE**2)
    return PolluxFit(problem.model(theta), theta, free, covariance)


def load_solver() -> None:
    """Half a second, once in a process: for callers that cannot wait at the first fit. From any thread."""
    import scipy.optimize  # noqa: F401 - slow to import


def _solved(problem: _Problem) -> tuple[Floats, Bools]:
    """The best parameters, and which of them the rows say anything about."""
    from scipy.optimize import least_squares  # slow to import

    start, free = problem.start()
    lower = np.append(np.full(6, np.log(LEAST)), 1.0)[free]
    upper = np.append(np.full(6, np.log(MOST)), 10.0)[free]
    best, best_cost = start, np.inf
    for gamma in STARTS:
        full = start.copy()
        full[GAMMA] = gamma if free[GAMMA] else 1.0

        def residual(x: Floats, full: Floats = full) -> Floats:
            return problem.residual(_fill_free(full, free, x))

        def jacobian(x: Floats, full: Floats = full) -> Floats:
            return problem.jacobian(_fill_free(full, free, x))[:, free]

        guess = np.clip(full[free], lower + 1e-6, upper - 1e-6)
        result = least_squares(residual, guess, jac=jacobian, bounds=(lower, upper), x_scale="jac", max_nfev=300)
        if result.cost < best_cost * (1.0 - 1e-9):
            best, best_cost = _fill_free(full, free, np.asarray(result.x)), float(result.cost)
    return best, free


def _fill_free(full: Floats, free: Bools, x: Floats) -> Floats:
    out = full.copy()
    out[free] = x
    return out


class _Problem:
    """Residuals and their derivatives in the logarithms of the six times, and gamma itself."""

    def __init__(
        self,
        gpus: Floats,
        nodes: Floats,
        local: Floats,
        step_s: Floats,
        compute_s: Floats,
        error: Floats | None = None,
    ) -> None:
        self.local, self.step_s = local, step_s
        self.seen = np.isfinite(compute_s)
        self.compute_s = np.where(self.seen, compute_s, step_s)
        self.inter, self.intra = nodes > 1, (nodes <= 1) & (gpus > 1)
        self.beyond = np.maximum(gpus - 2.0, 0.0)
        inverse = np.ones(len(gpus)) if error is None else 1.0 / error
        self.weight = inverse / np.sqrt(np.sum(inverse**2))
        self.one_batch = len(np.unique(local)) == 1

    def start(self) -> tuple[Floats, Bools]:
        """A first guess from the data, and which parameters the data can say anything about."""
        free = np.ones(7, dtype=bool)
        theta = np.log(np.full(7, LEAST))
        mean_s = float(np.mean(self.compute_s))
        theta[ALPHA_C] = np.log(mean_s / 2.0)
        theta[BETA_C] = np.log(mean_s / 2.0 / float(np.mean(self.local)))
        free[ALPHA_C] = not self.one_batch  # half of the time is taken as fixed then
        exchange_s = np.maximum(self.step_s - self.compute_s, 1e-3 * self.step_s)
        for alpha, beta, where in ((ALPHA_N, BETA_N, self.inter), (ALPHA_R, BETA_R, self.intra)):
            free[alpha] = bool(where.any())
            free[beta] = bool((where & (self.beyond > 0)).any())
            if free[alpha]:
                theta[alpha] = np.log(float(np.median(exchange_s[where])))
            if free[beta]:
                theta[beta] = theta[alpha] - np.log(20.0)
        free[GAMMA] = bool((self.inter | self.intra).any())
        theta[GAMMA] = 1.0
        return theta, free

    def model(self, theta: Floats) -> PolluxStep:
        """The parameters as a step-time model, with what was not observed filled in."""
        times = np.exp(theta[:6])
        times[times <= LEAST * 2.0] = 0.0
        if not self.inter.any():
            times[ALPHA_N], times[BETA_N] = NETWORK_PRIOR * times[ALPHA_R], NETWORK_PRIOR * times[BETA_R]
        alpha_c_s, beta_c_s, alpha_n_s, beta_n_s, alpha_r_s, beta_r_s = times.tolist()
        return PolluxStep(
            alpha_c_s=alpha_c_s,
            beta_c_s=beta_c_s,
            alpha_n_s=alpha_n_s,
            beta_n_s=beta_n_s,
            alpha_r_s=alpha_r_s,
            beta_r_s=beta_r_s,
            gamma=float(np.clip(theta[GAMMA], 1.0, 10.0)),
        )

    def residual(self, theta: Floats) -> Floats:
        """Weighted log errors of compute and step, then three penalties."""
        compute, exchange = self._times(theta)
        log_step = self._log_step(compute, exchange, theta[GAMMA])
        slopes = np.exp(theta[[BETA_N, BETA_R]] - theta[[ALPHA_N, ALPHA_R]])
        return np.concatenate(
            [
                self.weight * np.where(self.seen, np.log(compute) - np.log(self.compute_s), 0.0),
                self.weight * (log_step - np.log(self.step_s)),
                np.sqrt(PULL_SLOPE) * slopes,
                [np.sqrt(PULL_GAMMA) * (theta[GAMMA] - 1.0)],
            ]
        )

    def slopes(self, theta: Floats) -> tuple[Floats, Floats]:
        """Derivatives of the logarithms of compute and step time, a row for each."""
        compute, exchange = self._times(theta)
        gamma, times = theta[GAMMA], np.exp(theta[:6])
        rows = len(compute)
        d_log_compute = np.zeros((rows, 7))
        d_log_compute[:, ALPHA_C] = times[ALPHA_C] / compute
        d_log_compute[:, BETA_C] = times[BETA_C] * self.local / compute
        d_log_exchange = np.zeros((rows, 7))
        exchanging = self.inter | self.intra
        for alpha, beta, where in ((ALPHA_N, BETA_N, self.inter), (ALPHA_R, BETA_R, self.intra)):
            d_log_exchange[where, alpha] = times[alpha] / exchange[where]
            d_log_exchange[where, beta] = times[beta] * self.beyond[where] / exchange[where]
        # log T = log(A^g + N^g) / g; share is A's part of the sum
        log_ratio = np.where(exchanging, np.log(np.where(exchanging, exchange, 1.0)) - np.log(compute), 0.0)
        share = np.where(exchanging, 1.0 / (1.0 + np.exp(np.clip(gamma * log_ratio, -700.0, 700.0))), 1.0)
        d_log_step = share[:, None] * d_log_compute + (1.0 - share)[:, None] * d_log_exchange
        over_compute = self._log_step(compute, exchange, gamma) - np.log(compute)
        d_log_step[:, GAMMA] = ((1.0 - share) * log_ratio - over_compute) / gamma
        return d_log_compute, d_log_step

    def jacobian(self, theta: Floats) -> Floats:
        """Derivatives of `residual`, a row for each."""
        d_log_compute, d_log_step = self.slopes(theta)
        penalty = np.zeros((3, 7))
        for row, (alpha, beta) in enumerate(((ALPHA_N, BETA_N), (ALPHA_R, BETA_R))):
            slope = np.sqrt(PULL_SLOPE) * np.exp(theta[beta] - theta[alpha])
            penalty[row, beta], penalty[row, alpha] = slope, -slope
        penalty[2, GAMMA] = np.sqrt(PULL_GAMMA)
        seen, weight = self.seen[:, None], self.weight[:, None]
        return np.vstack([weight * np.where(seen, d_log_compute, 0.0), weight * d_log_step, penalty])

    def _times(self, theta: Floats) -> tuple[Floats, Floats]:
        times = np.exp(theta[:6])
        compute = times[ALPHA_C] + times[BETA_C] * self.local
        inter = times[ALPHA_N] + times[BETA_N] * self.beyond
        intra = times[ALPHA_R] + times[BETA_R] * self.beyond
        return compute, np.where(self.inter, inter, np.where(self.intra, intra, 0.0))

    def _log_step(self, compute: Floats, exchange: Floats, gamma: float) -> Floats:
        high, low = np.maximum(compute, exchange), np.minimum(compute, exchange)
        return np.asarray(np.log(high) + np.log1p((low / high) ** gamma) / gamma)
