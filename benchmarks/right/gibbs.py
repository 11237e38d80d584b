"""References of logistic models by Gibbs sampling, where NUTS over theta and z mixes too slowly.

With a Polya-Gamma variable for each row the likelihood is Gaussian in all coefficients (Polson, Scott and
Windle 2013). In each sweep globals are drawn twice, given standardised effects and given the effects
themselves (Yu and Meng 2011): one of the two mixes well, whatever the rows say of an effect. Factors of
two correlated effects are drawn by short random walks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.right.problem import Data, sums

TERMS = 16  # of the sum that makes a Polya-Gamma variable; a gamma variable stands for the others
STEPS = 20  # of a random walk of the effects' scales, in each sweep


class Design(NamedTuple):
    """A logistic model: eta = C beta + W z_i, z_i = L u_i, with beta and sds on the scale of priors."""

    C: np.ndarray  # common columns at their means, with the intercept
    W: np.ndarray  # columns whose effects vary by group
    kappa: np.ndarray  # y - 1/2
    group: np.ndarray
    moves: np.ndarray  # [N, M, P]: what beta adds to a group's effects, where it is their centre
    prior: np.ndarray  # sds of beta
    scale: np.ndarray  # of the half normal priors of the effects' sds


class State(NamedTuple):
    """Where a chain is."""

    beta: np.ndarray
    L: np.ndarray
    u: np.ndarray


def design(data: Data, names: list[str], varying: list[str]) -> Design:
    """Of the arrays of a formula; `names` are those of its common effects."""
    X, W, group, means = (np.asarray(data[name]) for name in ("X", "W", "group", "means"))
    first = np.unique(group, return_index=True)[1]
    moves = np.zeros((len(first), W.shape[1], 1 + X.shape[1]))
    moves[:, 0, 0] = 1.0
    for k, name in enumerate(names):
        if name in varying:
            moves[:, varying.index(name), 1 + k], moves[:, 0, 1 + k] = 1.0, -means[k]
        elif np.array_equal(X[first, k][group], X[:, k]):
            moves[:, 0, 1 + k] = X[first, k] - means[k]
    C = np.column_stack([np.ones(len(X)), X - means])
    prior = np.append(2.5, 2.5 / data["units"])
    return Design(
        C, W, data["y"] - 0.5, group, moves, prior, 2.5 / np.asarray(data["varying_units"])
    )


def polya_gamma(rng: np.random.Generator, c: np.ndarray) -> np.ndarray:
    """Draws of PG(1, c): sums of exponentials, whose tail has its own mean and variance."""
    h = (c / (2 * np.pi)) ** 2
    found = np.zeros_like(c)
    for k in range(TERMS):
        found += rng.standard_exponential(c.shape) / ((k + 0.5) ** 2 + h)
    a = np.maximum(np.sqrt(h), 1e-2)
    mean = (np.pi / 2 - np.arctan(TERMS / a)) / a
    variance = (mean - TERMS / (TERMS**2 + a**2)) / (2 * a**2)
    found += rng.gamma(mean**2 / variance) * variance / mean
    return found / (2 * np.pi**2)


def sweep(rng: np.random.Generator, of: Design, s: State, independent: bool) -> State:
    """The next state."""
    fixed = of.C @ s.beta
    omega = polya_gamma(rng, fixed + np.sum(of.W * (s.u @ s.L.T)[of.group], 1))
    s = s._replace(u=_effects(rng, of, omega, of.kappa - omega * fixed, s.L))
    s = _given_standardised(rng, of, omega, s, independent)
    z = s.u @ s.L.T
    L = _factor_of_effects(rng, of, z, s.L, independent)
    centre = of.moves @ s.beta
    s = s._replace(L=L, beta=_given_effects(rng, of, centre + z, s.beta, L))
    rest = centre + z - of.moves @ s.beta
    return s._replace(u=np.linalg.solve(L, rest.T).T)


def _effects(
    rng: np.random.Generator, of: Design, omega: np.ndarray, pull: np.ndarray, L: np.ndarray
) -> np.ndarray:
    """The standardised effects of all groups given the rest."""
    V = of.W @ L
    A = np.eye(V.shape[1]) + sums(of.group, omega[:, None, None] * V[:, :, None] * V[:, None, :])
    root = np.linalg.cholesky(A)
    half = np.linalg.solve(root, sums(of.group, V * pull[:, None])[..., None])
    noise = rng.normal(size=half.shape)
    return np.linalg.solve(np.swapaxes(root, 1, 2), half + noise)[..., 0]


def _given_standardised(
    rng: np.random.Generator, of: Design, omega: np.ndarray, s: State, independent: bool
) -> State:
    """Beta and L, in which eta is linear given u."""
    P, M = of.C.shape[1], of.W.shape[1]
    rows, columns = np.diag_indices(M) if independent else np.tril_indices(M)
    D = np.column_stack([of.C, of.W[:, rows] * s.u[of.group][:, columns]])
    Q, pull = (D * omega[:, None]).T @ D, D.T @ of.kappa
    Q[:P, :P] += np.diag(of.prior**-2)
    if independent:  # a half normal sd is the size of a normal number
        Q[P:, P:] += np.diag(of.scale**-2)
        both = _normal(rng, Q, pull)
        beta, own = both[:P], both[P:]
        return State(beta, np.diag(np.abs(own)), s.u * np.sign(own))
    alone = np.linalg.solve(Q[:P, :P], np.column_stack([Q[:P, P:], pull[:P]]))
    rest, slope = Q[P:, P:] - Q[P:, :P] @ alone[:, :-1], pull[P:] - Q[P:, :P] @ alone[:, -1]

    def log_lik(L: np.ndarray) -> float:
        own = L[rows, columns]
        return float(slope @ own - 0.5 * own @ rest @ own)

    L = _walk(rng, of, s.L, log_lik)
    return State(_normal(rng, Q[:P, :P], pull[:P] - Q[:P, P:] @ L[rows, columns]), L, s.u)


def _factor_of_effects(
    rng: np.random.Generator, of: Design, z: np.ndarray, L: np.ndarray, independent: bool
) -> np.ndarray:
    """L given the effects themselves."""
    N, S = len(z), z.T @ z
    if not independent:
        log_lik = lambda L: float(
            -N * np.log(np.diag(L)).sum() - 0.5 * np.trace(np.linalg.solve(L @ L.T, S))
        )
        return _walk(rng, of, L, log_lik)
    # s^-N exp(-S / 2 s^2) is that of an inverse gamma variable; the prior decides on it.
    own, new = np.diag(L), np.sqrt(0.5 * np.diag(S) / rng.gamma(0.5 * (N - 1), size=len(L)))
    kept = np.log(rng.random(len(L))) < -0.5 * (new**2 - own**2) / of.scale**2
    return np.diag(np.where(kept, new, own))


def _given_effects(
    rng: np.random.Generator, of: Design, effects: np.ndarray, beta: np.ndarray, L: np.ndarray
) -> np.ndarray:
    """Those of beta that centre the groups' effects, given these."""
    own = np.flatnonzero(np.abs(of.moves).sum((0, 1)))
    moves, precision = of.moves[:, :, own], np.linalg.inv(L @ L.T)
    Q = np.einsum("nmp,mk,nkq->pq", moves, precision, moves) + np.diag(of.prior[own] ** -2)
    drawn = _normal(rng, Q, np.einsum("nmp,mk,nk->p", moves, precision, effects))
    beta = beta.copy()
    beta[own] = drawn
    return beta


def _normal(rng: np.random.Generator, Q: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """A draw from N(Q^-1 pull, Q^-1)."""
    root = np.linalg.cholesky(Q)
    return np.linalg.solve(root.T, np.linalg.solve(root, pull) + rng.normal(size=len(pull)))


def _walk(
    rng: np.random.Generator, of: Design, L: np.ndarray, log_lik: Callable[[np.ndarray], float]
) -> np.ndarray:
    """Metropolis steps of all sizes of log sds and atanh(correlation), two effects."""
    sd = np.sqrt(np.sum(L**2, 1))
    here = np.append(np.log(sd), np.arctanh(np.clip(L[1, 0] / sd[1], -1 + 1e-12, 1 - 1e-12)))

    def target(at: np.ndarray) -> tuple[float, np.ndarray]:
        sd, cor = np.exp(at[:2]), np.tanh(at[2])
        own = np.array([[sd[0], 0], [sd[1] * cor, sd[1] * np.sqrt(1 - cor**2)]])
        log_prior = at[:2].sum() + np.log1p(-(cor**2)) - 0.5 * np.sum((sd / of.scale) ** 2)
        return log_prior + log_lik(own), own

    value, own = target(here)
    for _ in range(STEPS):
        step = rng.normal(size=3) * 10 ** rng.uniform(-2, 0.3) * (rng.random(3) < 0.6)
        there, moved = target(here + step)
        if np.log(rng.random()) < there - value:
            here, value, own = here + step, there, moved
    return own


def draws(
    of: Design, independent: bool, sweeps: int, seed: int, shown: np.ndarray
) -> tuple[Any, Any, Any]:
    """Beta [S, P], L [S, M, M] and the effects of the groups `shown` of a chain after its first tenth."""
    rng, M = np.random.default_rng(seed), of.W.shape[1]
    u = rng.normal(size=(of.group.max() + 1, M))
    s = State(0.1 * rng.normal(size=of.C.shape[1]), 0.5 * np.eye(M), u)
    kept = []
    for number in range(sweeps):
        s = sweep(rng, of, s, independent)
        if number >= sweeps // 10:
            kept.append((s.beta, s.L, (s.u @ s.L.T)[shown]))
    return tuple(np.stack(part) for part in zip(*kept, strict=True))
