"""The paper's largest problem: 160,000 users, about 20 million ratings, M = 10, D = 65.

    python -m benchmarks gpu                          # on a GPU; some minutes
    python -m benchmarks gpu --users 2000 --seconds 10

One run fits the same simulated ratings with

- `solved`, twice: cold (compiling included) and warm;
- `amortized`, block covariance, with our recipe: the defaults of `rf.fit`;
- `amortized`, block covariance, with the paper's: its map and start, plain pooling, 400 users per step,
  Adam at 1e-3 with its step-size drop, total gradient.

Seconds run from the call of `rf.fit` to its return. They include copying the data to the device, but
not simulating them. Each line of JSON has one fit with its trace; the table compares them:

- `ELBO/rating` is the paper's bound (K = 1) at the end, on the same users for all, with few draws;
- `to own end` is the time until the trace is within 0.0005 nats per rating of its final value;
- `to best` is the time until it is within 0.0005 nats per rating of the best fit, counting the gap
  between its own final ELBO and the best; `-` if never. Traces of steps are running means.

The last line compares the time of one sweep of `solved` over the data with a lower bound on it.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax

import ramify as rf
from benchmarks import show
from ramify.posterior.draws import draw_theta
from ramify.posterior.metrics import theta_terms

M = 10
BELOW = np.tril_indices(M, -1)
NEAR = 0.0005  # nats per rating


def main(argv: list[str]) -> int:
    """Runs everything; a fit that fails does not stop the rest."""
    args = _parse(argv)
    started = time.perf_counter()
    groups = simulate(args.users, args.seed)
    model, n = preferences(), groups.n_rows
    device = jax.local_devices()[0]
    say("data", users=len(groups), ratings=n, seconds=time.perf_counter() - started)
    say("machine", device=device.device_kind, jax=jax.__version__)
    rng = np.random.default_rng(args.seed)
    some = rng.choice(len(groups), min(args.evaluate, len(groups)), replace=False)
    judged = groups.subset(positions=np.sort(some))
    fits, last = [], None
    for name, make in recipes(model, groups, args).items():
        if args.only and name.split(",")[0] not in args.only:
            continue
        fit = measure(name, make, judged, n)
        fits.append(fit)
        last = fit if name == "solved, warm" else last
    show(compare([fit for fit in fits if fit is not None]))
    if last is not None and "groups" in last.posterior.history:  # K = 1 is fitted by steps
        floor(last, groups, args)
    say("total", seconds=time.perf_counter() - started)
    return int(any(fit is None for fit in fits))


def simulate(users: int, seed: int) -> rf.Groups:
    """Ratings drawn from the model: 20 to 1,000 of each user, 127 on average."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.exp(rng.normal(np.log(71), 1.1, users)), 20, 1000).astype(int)
    L = np.tril(0.15 * rng.normal(size=(M, M)), -1) + np.diag(rng.uniform(0.3, 0.7, M))
    z = (rng.normal(0, 0.3, M) + rng.normal(size=(users, M)) @ L.T).astype(np.float32)
    user = np.repeat(np.arange(users, dtype=np.int32), sizes)
    x = rng.standard_normal((len(user), M), np.float32)
    logits = np.einsum("rm,rm->r", x, z[user])
    y = (rng.random(len(user), np.float32) < 1 / (1 + np.exp(-logits))).astype(np.int8)
    table = {"user": user, "x": x, "y": y}
    return rf.Groups.from_table(table, by="user", rows=["x", "y"])


def preferences() -> rf.Model:
    """The paper's MovieLens model: N(0, I) over theta, which holds mu and the free numbers of L."""

    def factor(free: jax.Array) -> jax.Array:
        first = free[:M]
        size = (first + jnp.sqrt(first**2 + 4)) / 2
        return jnp.diag(size).at[BELOW].set(free[M:])

    return rf.Model(
        theta={"mu": rf.real(M), "free": rf.real(M * (M + 1) // 2)},
        z={"taste": rf.real(M)},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.Normal(0, 1).log_prob(theta["free"]).sum()
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mu"], scale_tril=factor(theta["free"])
        ).log_prob(z["taste"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=jnp.dot(row["x"], z["taste"])).log_prob(
            row["y"]
        ),
        structure=rf.Structure(
            rf.NormalPrior(
                lambda theta, group: theta["mu"], lambda theta, group: factor(theta["free"])
            ),
            rf.LinearPredictors(
                weights=lambda row: row["x"][None],
                offset=lambda theta, row: jnp.zeros(1),
                density=lambda theta, eta, row: dist.Bernoulli(logits=eta[0]).log_prob(row["y"]),
                uses_theta=False,
                smooth=True,
            ),
        ),
    )


def recipes(
    model: rf.Model, groups: rf.Groups, args: argparse.Namespace
) -> dict[str, Callable[[], rf.Posterior]]:
    """What is fitted, by name and in order."""

    def solved() -> rf.Posterior:
        family, most = rf.solved(model, groups), 2 * args.seconds  # a net: it stops by itself
        return rf.fit(model, groups, family=family, local_draws=args.local_draws, max_seconds=most)

    def ours() -> rf.Posterior:
        family = rf.amortized(model, groups, "block")
        return rf.fit(model, groups, family=family, max_seconds=args.seconds)

    def paper() -> rf.Posterior:
        plain = {"scale_map": "paper", "centred": False, "count_aware": False, "standardise": False}
        return rf.fit(
            model,
            groups,
            family=rf.amortized(model, groups, "block", **plain),
            optimizer=optax.adam(rf.paper_schedule("large")),
            estimator="total",
            minibatch=min(400, len(groups)),
            max_seconds=args.seconds,
        )

    return {
        "solved, cold": solved,
        "solved, warm": solved,
        "amortized, our recipe": ours,
        "amortized, the paper's": paper,
    }


class Fit(NamedTuple):
    """One fit: its seconds, its trace in nats per rating, and its bound on the judged users."""

    name: str
    seconds: float
    posterior: rf.Posterior
    when: np.ndarray
    trace: np.ndarray
    elbo: float
    se: float


def measure(name: str, make: Callable[[], rf.Posterior], judged: rf.Groups, n: int) -> Fit | None:
    """Fits, judges and tells in a line of JSON."""
    started = time.perf_counter()
    try:
        posterior = make()
    except Exception as error:  # the other fits are still worth having
        say(name, failed=f"{type(error).__name__}: {error}")
        return None
    seconds = time.perf_counter() - started
    when, trace = curve(posterior, n)
    elbo, se = judge(posterior, judged, n)
    few = np.unique(np.linspace(0, len(when) - 1, 60).astype(int))
    notes = {k: v for k, v in posterior.notes.items() if isinstance(v, int | float | str | bool)}
    say(
        name,
        seconds=seconds,
        elbo_per_rating=elbo,
        se=se,
        judging_seconds=time.perf_counter() - started - seconds,
        notes=notes,
        trace=[[round(float(when[i]), 3), round(float(trace[i]), 6)] for i in few],
    )
    return Fit(name, seconds, posterior, when, trace, elbo, se)


def curve(posterior: rf.Posterior, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bound per rating; sweeps over some of the users are left out, steps averaged."""
    history = posterior.history
    seconds, trace = history["seconds"], history["elbo"] / n
    if "groups" in history:
        whole = history["groups"] == len(posterior.labels)
        return seconds[whole], trace[whole]
    window = max(len(trace) // 20, 1)
    mean = np.convolve(trace, np.full(window, 1 / window), "valid")
    return seconds[window - 1 :], mean


def judge(
    posterior: rf.Posterior, judged: rf.Groups, n: int, draws: int = 8
) -> tuple[float, float]:
    """The K = 1 ELBO per rating, with the groups' part measured on the judged users.

    Theta's part, E_q[log p(theta) - log q(theta)], counts once for all n ratings; the draws of
    theta are those that `elbo` makes of the same seed.
    """
    bound = posterior.elbo(judged, draws=draws, seed=0)
    theta = draw_theta(jax.random.key(0), posterior.family, posterior.model, draws)
    own = float(theta_terms(posterior.model, theta).mean())
    return own / n + (float(bound) - own) / judged.n_rows, bound.se / judged.n_rows


def compare(fits: list[Fit]) -> list[dict[str, Any]]:
    """The table: every fit against its own end and against the best of all."""
    best = max((fit.elbo for fit in fits), default=0.0)
    rows = []
    for fit in fits:
        rise = np.maximum(fit.trace[-1] - fit.trace, 0)  # what it still had to gain
        rows.append(
            {
                "fit": fit.name,
                "seconds": fit.seconds,
                "steps or sweeps": int(fit.posterior.history["step"][-1]),
                "ELBO/rating": f"{fit.elbo:.5f}",
                "below best": best - fit.elbo,
                "to own end": _first(fit.when, rise < NEAR),
                "to best": _first(fit.when, rise + best - fit.elbo < NEAR),
            }
        )
    return rows


def _first(when: np.ndarray, good: np.ndarray) -> float | None:
    """The first time it was good."""
    return float(when[np.argmax(good)]) if good.any() else None


def floor(fit: Fit, groups: rf.Groups, args: argparse.Namespace) -> None:
    """What one sweep over all users must cost at least, at one point of theta, and what it cost.

    Arithmetic, multiplications and additions counted one each, with T Newton steps, K local draws,
    n rows and N groups:

        a row's value       v = 2 M                 x'z
        a row's expansion   e = M^2 + 5 M           x'z, its slope (2 M), and the lower triangle
                                                    of w x x', made and added up (M (M + 1))
        rows                n (T e + K v)           Newton; the importance draws
        factorisations      N (T + 6) (2/3 M^3 + 4 M^2)
                                                    Cholesky, inverse and two products; 5 of them
                                                    are the dampings tried, 1 the recombination
        theta               3 N K c                 log p(z | theta) and the gradient of the bound,
                                                    where a value takes c = M^2 + 2 M: a triangular
                                                    solve

    Memory: every row is read once, 4 n (M + 1) bytes, since a block's rows fit in the cache; each
    group's last solution is read and written, 8 N M. All else could stay on the chip.
    """
    posterior, history = fit.posterior, fit.posterior.history
    n, N, K = groups.n_rows, len(groups), posterior.local_draws
    whole = history["groups"] == N
    T = float(history["newton_steps"][whole].mean())
    value, expansion = 2 * M, M**2 + 5 * M
    rows = n * (T * expansion + K * value)
    factors = N * (T + 6) * (2 / 3 * M**3 + 4 * M**2)
    theta = N * K * 3 * (M**2 + 2 * M)
    moved = 4 * n * (M + 1) + 8 * N * M
    ms = lambda flops: 1e3 * flops / (1e12 * args.tflops)
    took = 1e3 * np.diff(history["seconds"], prepend=0.0)[whole]
    say(
        "floor of one sweep",
        newton_steps=T,
        local_draws=K,
        gflop={"rows": rows / 1e9, "factorisations": factors / 1e9, "theta": theta / 1e9},
        memory_ms=1e3 * moved / (1e12 * args.tbytes),
        arithmetic_ms=ms(rows + factors + theta),
        whole_sweeps_took_ms=[round(float(t), 1) for t in took],
    )


def say(what: str, **facts: Any) -> None:
    """One line of JSON."""
    print(json.dumps({"what": what, **_short(facts)}), flush=True)


def _short(fact: Any) -> Any:
    if isinstance(fact, dict):
        return {name: _short(part) for name, part in fact.items()}
    return float(f"{fact:.6g}") if isinstance(fact, float) else fact


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=160_000, help="number of users (160,000)")
    parser.add_argument("--seconds", type=float, default=60, help="for each amortized fit (60)")
    parser.add_argument("--evaluate", type=int, default=8000, help="users to judge fits on (8,000)")
    parser.add_argument("--local-draws", type=int, help="K of solved; by default it chooses")
    parser.add_argument("--only", nargs="+", choices=("solved", "amortized"), help="some fits only")
    parser.add_argument("--seed", type=int, default=0)
    # An H200's data sheet: float32 outside the tensor cores, and memory bandwidth.
    parser.add_argument("--tflops", type=float, default=67.0, help="peak of the device (67)")
    parser.add_argument("--tbytes", type=float, default=4.8, help="TB/s of its memory (4.8)")
    return parser.parse_args(argv)
