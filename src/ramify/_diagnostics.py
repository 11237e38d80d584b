"""Whether to trust a fit: importance weights of theta and of every group, and a verdict in words.

A posterior approximation q is as good as the weights p/q of its own draws are even: see `_pareto` for
k-hat, which says how even, and Yao et al., "Yes, but did it work?" (2018), for the idea.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int64, PRNGKeyArray, Shaped

from ramify._blas import one_blas_thread
from ramify._data import Groups
from ramify._draws import Draws, draw_theta, map_draws, per_draw
from ramify._family import Branched, Family, example, group_noise, group_points
from ramify._local import Local
from ramify._marginal import bound
from ramify._metrics import _sums, _theta_terms
from ramify._model import Model, group_log_lik
from ramify._pareto import effective_draws as effective_draws
from ramify._pareto import k_hat as k_hat
from ramify._posterior import Posterior
from ramify._solver import Solver, recombine, uses_theta
from ramify._streaming import blocks, precise_sum
from ramify._summary import worries
from ramify._types import Batch

Verdict = Literal["trust", "check", "do not trust"]

GOOD, BAD = 0.5, 0.7  # k-hat: weights with a variance; the most that averages can stand
WORK = 2**29  # most evaluations of a row's likelihood, within reason: seconds on two cores
MANY = 1000  # groups: theta is then known well enough for one proposal to serve all its draws
MOVED, FAR = 0.5, 1.0  # sds by which weights move a mean: worth a look; too far
THETAS = 4  # draws of theta at which each group is judged
FEWEST, MOST = 64, 256  # draws of z at each


@final
@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `diagnose` found; printing it shows the verdict, the reasons and the worst groups.

    Attributes:
        verdict: "trust", "check" or "do not trust".
        reasons: sentences: what was found and, where something is wrong, what to do.
        k_hat: of theta's importance weights.
        effective_draws: how many of `draws` the weights of theta leave.
        draws: draws of theta that were weighed.
        shift: by coordinate of the unconstrained theta, how far the weights move its mean, in sds.
        by: name of the label column.
        labels: the groups that were judged, [N]; empty for a joint family.
        sizes: their rows.
        group_k_hat: of each group's weights.
        group_effective: share of its draws that each group's weights leave.
        gap: what the group's Gaussian loses, in nats: tight bound less plain.
        converged: whether the group's own solution was found.
    """

    verdict: Verdict
    reasons: list[str]
    k_hat: float
    effective_draws: float
    draws: int
    shift: dict[str, float]
    by: str
    labels: Shaped[np.ndarray, " N"]
    sizes: Int64[np.ndarray, " N"]
    group_k_hat: Float64[np.ndarray, " N"]
    group_effective: Float64[np.ndarray, " N"]
    gap: Float64[np.ndarray, " N"]
    converged: Bool[np.ndarray, " N"]

    def worst(self, count: int = 10) -> dict[str, np.ndarray]:
        """The worst groups as a table: unconverged ones first, then by k-hat, then by gap."""
        order = np.lexsort((-self.gap, -self.group_k_hat, self.converged))[:count]
        columns = {
            self.by: self.labels,
            "n": self.sizes,
            "k_hat": self.group_k_hat,
            "effective": self.group_effective,
            "gap": self.gap,
            "converged": self.converged,
        }
        return {name: column[order] for name, column in columns.items()}

    def __repr__(self) -> str:
        """The verdict, the reasons, and the five worst groups."""
        lines = [f"Verdict: {self.verdict}", *(f"  - {reason}" for reason in self.reasons)]
        if len(self.labels):
            lines += ["Worst groups:", *_table(self.worst(5))]
        return "\n".join(lines)


@one_blas_thread
def diagnose(
    posterior: Posterior, groups: Groups | None = None, draws: int | None = None, seed: int = 0
) -> Diagnosis:
    """Judges a fit by the importance weights of its own draws.

    Theta is weighed against its marginal posterior, log p(theta) + sum_i log p^(y_i | theta) -
    log q(theta), with the groups' z integrated out by importance draws that all draws of theta share.
    Each group is weighed at some draws of theta, log p(y_i, z | theta) - log q(z | theta). A joint family
    has no q(z_i | theta): its weights are those of everything together, and its groups are not judged.

    Args:
        posterior: the fit.
        groups: the data; those of the fit by default.
        draws: S, draws of theta; by default as many as seconds allow, 100 to 1,000.
        seed: the answer is a function of it.
    """
    groups = posterior._for_metrics(groups)
    # Not the draws of the fit itself: its own Monte Carlo error is to be seen.
    key = jax.random.fold_in(jax.random.key(seed), 2**31 - 1)
    S, K = _affordable(posterior, groups, draws)
    theta = draw_theta(key, posterior.family, posterior.model, S)
    log_weights = _theta_log_weights(posterior.family, posterior.model, groups, theta, K)
    judged, locals_ = _judge_groups(posterior, groups, jax.random.fold_in(key, 1))
    found = _Theta(
        k_hat(log_weights), effective_draws(log_weights), S, _shift(posterior, theta, log_weights)
    )
    findings = [_about_theta(posterior, found), *_about_groups(posterior, judged, locals_, groups)]
    findings += _about_notes(posterior.notes, len(groups))
    level = max(level for level, _ in findings)
    verdicts: list[Verdict] = ["trust", "check", "do not trust"]
    reasons = [sentence for _, sentence in sorted(findings, key=lambda f: -f[0])]
    return Diagnosis(
        verdicts[level], reasons, *found, posterior.by, judged.labels, judged.sizes, *locals_
    )


class _Theta(NamedTuple):
    """What is known of theta's weights."""

    k_hat: float
    effective: float
    draws: int
    shift: dict[str, float]


class _Locals(NamedTuple):
    """What is known of each group's weights."""

    k_hat: Float64[np.ndarray, " N"]
    effective: Float64[np.ndarray, " N"]
    gap: Float64[np.ndarray, " N"]
    converged: Bool[np.ndarray, " N"]


def _affordable(posterior: Posterior, groups: Groups, draws: int | None) -> tuple[int, int]:
    """Draws of theta, and local draws for each, within the work allowed.

    Never fewer local draws than eight a dimension, nor than the fit needed for its own bias.
    """
    least = max(16, 8 * posterior.model.z.size, min(posterior.local_draws, 512))
    rows = groups.n_rows + len(groups)
    S = draws or int(np.clip(WORK // (rows * least), 100, 1000))
    if S < 25:
        raise ValueError(f"diagnose expected at least 25 draws, to see the weights' tail; got {S}.")
    return S, int(np.clip(WORK // (rows * S), least, max(64, least)))


def _theta_log_weights(
    family: Family, model: Model, groups: Groups, theta: Draws, K: int
) -> Float64[np.ndarray, " S"]:
    """Log p^(theta, y) / q(theta) of each draw; of everything together for a joint family."""
    total = _theta_terms(model, theta)
    if not isinstance(family, Branched):
        return total + _sums(family, model, groups, theta, "joint")
    fixed = len(groups) >= MANY and not uses_theta(model, example(groups))
    for block in blocks(groups):
        high, low = _marginal_block(family, model, block.batches[0], theta, K, fixed)
        total += np.asarray(high, np.float64) + np.asarray(low, np.float64)
    return total


@eqx.filter_jit
def _marginal_block(
    family: Branched, model: Model, batch: Batch, theta: Draws, K: int, fixed: bool
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Sum over the block's groups of log p^(y_i | theta), freed of its 1/K bias, in two parts.

    All draws of theta share the groups' points, so that what is left of noise shifts them alike. With
    `fixed` they also share the proposal, and with it the likelihood of a model whose rows do not
    involve theta: only p(z | theta) is left to evaluate at each.
    """
    conditional, centre = family.conditional(model, batch), family.theta.mean
    points = group_points(theta.keys[0], batch.index, K, model.z.size)
    z, log_q = jax.vmap(conditional(centre).propose)(points)
    known = lambda z: group_log_lik(model, centre, z, batch)
    shared = jax.lax.map(known, z, batch_size=8) - log_q if fixed else None

    def weights(value: Float[Array, " D"]) -> Float[Array, "K B"]:
        if shared is not None:
            return shared + jax.vmap(lambda z: model.log_local(value, z, batch))(z)
        local = conditional(value)
        weigh = lambda noise: _log_weight(model, batch, value, *local.propose(noise))
        return jax.lax.map(weigh, points, batch_size=8)

    def one(_: PRNGKeyArray, value: Float[Array, " D"]) -> tuple[Array, Array]:
        each, _ = bound(weights(value))
        return precise_sum(jnp.where(batch.group_mask, each, 0))

    return map_draws(one, theta, per_draw(family, model, batch, K))


def _log_weight(
    model: Model,
    batch: Batch,
    theta: Float[Array, " D"],
    z: Float[Array, "B M"],
    log_q: Float[Array, " B"],
) -> Float[Array, " B"]:
    return model.log_local(theta, z, batch) + group_log_lik(model, theta, z, batch) - log_q


def _judge_groups(
    posterior: Posterior, groups: Groups, key: PRNGKeyArray
) -> tuple[Groups, _Locals]:
    """Weighs each group's local draws; a random part of the groups where all would be too many."""
    family, model = posterior.family, posterior.model
    if not isinstance(family, Branched):
        none = np.zeros(0)
        return groups._take(np.zeros(0, np.int64)), _Locals(none, none, none, none > 0)
    order = np.random.default_rng(0).permutation(len(groups))
    within = np.cumsum(groups.sizes[order] + 1) <= 2 * WORK // (THETAS * FEWEST)
    within[0] = True
    judged = groups if within.all() else groups.subset(positions=np.sort(order[within]))
    theta, tight = draw_theta(key, family, model, THETAS), posterior.local_draws > 1
    K = int(np.clip(WORK // (2 * THETAS * (judged.n_rows + len(judged))), FEWEST, MOST))
    found = []
    for block in blocks(judged):
        out = _local_block(family, model, block.batches[0], theta, K, tight)
        real = slice(0, block.stop - block.start)
        weights, gap, converged = (np.asarray(x)[..., real] for x in out)
        own = np.asarray(weights, np.float64)
        share = effective_draws(own) / len(own)
        found.append(_Locals(k_hat(own), share, gap.astype(np.float64), converged))
    return judged, _Locals(*(np.concatenate(column) for column in zip(*found, strict=True)))


@eqx.filter_jit
def _local_block(
    family: Branched, model: Model, batch: Batch, draws: Draws, K: int, tight: bool
) -> tuple[Float[Array, "W B"], Float[Array, " B"], Bool[Array, " B"]]:
    """Log weights over their median at the same theta, the Gaussian's gap, and who converged.

    Weights are those of what draws come from: the Student t proposal of a tight fit, or the Gaussian.
    """
    conditional, converged = _solved_once(family, model, batch)
    M = model.z.size

    def one(key: PRNGKeyArray, theta: Float[Array, " D"]) -> tuple[Array, Array]:
        local = conditional(theta)
        if tight:
            points = group_points(key, batch.index, K, M)
        else:
            points = jnp.moveaxis(group_noise(key, batch.index, (K, M)), 1, 0)
        z, log_q = jax.vmap(local.propose if tight else local.draw)(points)
        joint = jax.lax.map(
            lambda z: _log_weight(model, batch, theta, z, jnp.zeros(len(z))), z, batch_size=8
        )
        return _centred(joint - log_q), _gap(local, joint, z, log_q)

    weights, gaps = jax.lax.map(lambda x: one(*x), (draws.keys, draws.theta))
    return weights.reshape(-1, weights.shape[-1]), jnp.mean(gaps, 0), converged


def _solved_once(family: Branched, model: Model, batch: Batch) -> tuple[Any, Bool[Array, " B"]]:
    """The block's conditional, and whether each group's solution was found."""
    local, centre = family.local, family.theta.mean
    if not isinstance(local, Solver):
        return family.conditional(model, batch), jnp.ones(batch.index.shape[0], bool)
    site = local.solve(model, batch, centre)
    return (
        lambda theta: recombine(model, batch, site, theta, local.uses_theta)
    ), site.converged | ~batch.group_mask


def _centred(log_weight: Float[Array, "K B"]) -> Float[Array, "K B"]:
    """Weights of one theta over their median: their mean would follow the tail that is judged."""
    return log_weight - jnp.median(log_weight, 0)[None]


def _gap(
    local: Local,
    joint: Float[Array, "K B"],
    z: Float[Array, "K B M"],
    log_q: Float[Array, "K B"],
) -> Float[Array, " B"]:
    """Log p^(y_i | theta) less the Gaussian's ELBO, both from the same draws."""
    gaussian = jax.vmap(local.log_prob)(z)
    share = jax.nn.softmax(gaussian - log_q, 0)
    plain = jnp.sum(share * (joint - gaussian), 0)
    return bound(joint - log_q)[0] - plain


def _shift(
    posterior: Posterior, theta: Draws, log_weights: Float64[np.ndarray, " S"]
) -> dict[str, float]:
    """How far the weights move the mean of each coordinate, in its sds under q."""
    q, drawn = posterior.family.theta, np.asarray(theta.theta, np.float64)
    weight = np.exp(np.nan_to_num(log_weights - log_weights.max(), nan=-np.inf))
    sd = np.sqrt(np.diagonal(np.asarray(q.covariance, np.float64)))
    # Less the draws' own mean: what is left is what the weights do.
    moved = (weight @ drawn / max(weight.sum(), 1e-300) - drawn.mean(0)) / sd
    names = posterior.model.theta.coordinates()
    return dict(zip(names, moved.tolist(), strict=True))


def _about_theta(posterior: Posterior, found: _Theta) -> tuple[int, str]:
    """Level and sentence of what the weights of theta say."""
    what = "theta" if isinstance(posterior.family, Branched) else "everything together"
    said = (
        f"k-hat of {what} is {found.k_hat:.2f}: its {found.draws:,} draws are worth "
        f"{found.effective:,.0f} by importance weight"
    )
    name = max(found.shift, key=lambda n: abs(found.shift[n]))
    most = abs(found.shift[name])
    moved = f"would move the mean of {name} by {most:.2g} sds"
    if found.k_hat > BAD or most > FAR:
        cure = _cure(posterior)
        return 2, f"{said}: q(theta) is not near the posterior. They {moved}. {cure}."
    if found.k_hat > GOOD or most > MOVED:
        return 1, f"{said}, and they {moved}. {_cure(posterior)}."
    return 0, f"{said}, and they move no mean by more than {most:.2g} sds."


def _cure(posterior: Posterior) -> str:
    if posterior.local_draws == 1:
        return "Fit with solved(), or with local_draws= above 1"
    again = 4 * posterior.local_draws
    return f"Fit with local_draws={again}, and compare with NUTS on a few hundred of the groups"


def _about_groups(
    posterior: Posterior, judged: Groups, found: _Locals, groups: Groups
) -> list[tuple[int, str]]:
    """Levels and sentences of what the groups' weights say."""
    if not len(judged):
        return [(0, "joint() has no q(z_i | theta), so its groups were not judged one by one.")]
    bad = found.k_hat > BAD
    share = bad.mean()
    of = f"{len(judged):,} groups" + ("" if len(judged) == len(groups) else " taken at random")
    loss = f"Their Gaussians lose {np.median(found.gap):.2g} nats each (median)"
    if posterior.local_draws > 1:
        loss += ", which the importance draws make up for"
    if not bad.any():
        return [(0, f"k-hat is below {BAD} in all {of}. {loss}.")]
    names = ", ".join(str(x) for x in judged.labels[np.argsort(-found.k_hat)][: min(3, bad.sum())])
    level = 0 if share < 0.01 else 1 if share < 0.1 else 2
    cure = (
        " Raise local_draws=, and look at these groups' rows."
        if posterior.local_draws > 1
        else " Use solved(), or posterior.refine(), or local_draws= above 1."
    )
    few = " Few enough for chance, or for groups that are odd." if level == 0 else cure
    said = f"k-hat is above {BAD} in {bad.sum():,} of {of} ({names}{', ...' if bad.sum() > 3 else ''})."
    return [(level, f"{said} {loss}.{few}")]


def _about_notes(notes: dict[str, Any], N: int) -> list[tuple[int, str]]:
    """Levels and sentences of what the fit itself had to say."""
    bias = float(np.max(np.abs(notes.get("bias_sds", 0.0))))
    severe = bias > 0.5 or notes.get("unconverged", 0) > 0.1 * N
    said = [f"The fit says: {line}." for line in worries(notes)]
    return [(2 if severe else 1, line) for line in said]


def _table(columns: dict[str, np.ndarray]) -> list[str]:
    """Columns as lines of text."""
    show = lambda x: f"{x:.2f}" if isinstance(x, float) else str(x)
    cells = [[name, *map(show, column.tolist())] for name, column in columns.items()]
    wide = [max(map(len, column)) for column in cells]
    rows = zip(*cells, strict=True)
    return [
        "  " + "  ".join(c.rjust(w) for c, w in zip(row, wide, strict=True)).rstrip()
        for row in rows
    ]
