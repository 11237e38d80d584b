"""Reference problems: simulated data, the NumPyro model, and the same model as three densities.

Each problem says the same joint density twice, with the same parameter names: as the flat NumPyro
model a user would give to NUTS, and as the three log densities Ramify takes. `test_problems.py`
holds the two to each other; `benchmarks/references.py` runs long NUTS (or quadrature) on the
first, and fits of the second are compared with the file it leaves in `tests/references/`.

Only `for_ramify` needs the library. A parameter is declared as name -> (kind, shape of its
constrained value), the kinds being the keys of `CONSTRAINTS`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import OrderedTransform, biject_to

Table = dict[str, np.ndarray]
Spec = dict[str, tuple[str, tuple[int, ...]]]
Named = dict[str, Any]

CONSTRAINTS = {
    "real": constraints.real,
    "positive": constraints.positive,
    "unit": constraints.unit_interval,
    "ordered": constraints.ordered_vector,
    "simplex": constraints.simplex,
    "cholesky": constraints.lower_cholesky,
    "corr_cholesky": constraints.corr_cholesky,
}
REFERENCES = Path(__file__).parent / "references"


@dataclass(frozen=True)
class Problem:
    """A data set and a model of it.

    Attributes:
        name: also the name of its reference file.
        table: long format, a dict of NumPy columns; "group" numbers the groups 0..N-1.
        n_group: number of groups, N.
        theta: global parameters.
        z: parameters of one group.
        log_prior: theta -> [].
        log_local: theta, z of one group, that group's columns -> [].
        log_lik: theta, z of one group, one row (its group's columns included) -> [].
        model: the flat NumPyro model, called with `arguments()`; its sites are theta, z and "y".
        group: columns of the table that are constant within a group.
        truth: the parameters the data were drawn with: theta, and z with a leading axis N.
        non_centred: sites of z, with a Normal prior, that NUTS should sample non-centred.
    """

    name: str
    table: Table
    n_group: int
    theta: Spec
    z: Spec
    log_prior: Callable[[Named], jax.Array]
    log_local: Callable[[Named, Named, Named], jax.Array]
    log_lik: Callable[[Named, Named, Named], jax.Array]
    model: Callable[..., None]
    group: tuple[str, ...] = ()
    truth: Named = field(default_factory=dict)
    non_centred: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the row columns."""
        return tuple(name for name in self.table if name not in ("group", *self.group))

    def group_columns(self) -> Table:
        """The group columns, one row per group: each [N, ...]."""
        first = np.unique(self.table["group"], return_index=True)[1]
        return {name: self.table[name][first] for name in self.group}

    def arguments(self) -> Named:
        """Keyword arguments of `model`: row columns, group columns, group numbers and N."""
        rows = {name: self.table[name] for name in self.rows}
        number = {"group": self.table["group"], "n_group": self.n_group}
        return rows | self.group_columns() | number

    def log_joint(self, theta: Named, z: Named) -> jax.Array:
        """The three densities summed over all groups and rows, at constrained values."""
        groups = jax.tree.map(jnp.asarray, self.group_columns())
        rows = {n: jnp.asarray(c) for n, c in self.table.items() if n != "group"}
        number = jnp.asarray(self.table["group"])
        if groups:
            local = jax.vmap(partial(self.log_local, theta))(z, groups)
        else:
            local = jax.vmap(lambda one: self.log_local(theta, one, {}))(z)
        own = jax.tree.map(lambda leaf: leaf[number], z)
        lik = jax.vmap(partial(self.log_lik, theta))(own, rows)
        return self.log_prior(theta) + local.sum() + lik.sum()

    def random_point(self, seed: int, scale: float = 0.5) -> tuple[Named, Named]:
        """Constrained (theta, z) from Gaussian noise on the unconstrained scale; z is [N, ...]."""
        rng = np.random.default_rng(seed)
        theta = {n: _random_value(rng, scale, *spec, ()) for n, spec in self.theta.items()}
        z = {n: _random_value(rng, scale, *spec, (self.n_group,)) for n, spec in self.z.items()}
        return theta, z

    def fingerprint(self) -> str:
        """A hash of the table, blind to rounding below 1e-6 and to dtypes."""
        digest = hashlib.sha256()
        for name in sorted(self.table):
            column = np.round(np.asarray(self.table[name], dtype=np.float64), 6) + 0.0
            digest.update(f"{name}{column.shape}".encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()


class Reference(NamedTuple):
    """What long NUTS or quadrature says about a problem: see `benchmarks/references.py`.

    Globals are flattened in the order of `Problem.theta`: `mean`, `sd`, `log_mean` (NaN unless
    positive), `quantiles` ([3, ...]: 5, 50 and 95%), `mcse`, `sd_mcse`, `ess`, `rhat` and `corr`
    describe the constrained values named in `names`; the same with `u_` in front describe the
    unconstrained vector theta [D]. Entries that are constant (a 0 or 1 of a Cholesky factor) have
    sd 0. `z_mean`, `z_sd` [N, M] are of the constrained, `zu_mean`, `zu_sd` of the unconstrained z.
    Quadrature has MCSE 0 and ESS infinity, and `log_evidence`; NUTS has NaN there.
    """

    method: str
    names: list[str]
    mean: np.ndarray
    sd: np.ndarray
    log_mean: np.ndarray
    quantiles: np.ndarray
    mcse: np.ndarray
    sd_mcse: np.ndarray
    ess: np.ndarray
    rhat: np.ndarray
    corr: np.ndarray
    u_names: list[str]
    u_mean: np.ndarray
    u_sd: np.ndarray
    u_mcse: np.ndarray
    u_sd_mcse: np.ndarray
    u_ess: np.ndarray
    u_rhat: np.ndarray
    u_corr: np.ndarray
    z_mean: np.ndarray
    z_sd: np.ndarray
    zu_mean: np.ndarray
    zu_sd: np.ndarray
    log_evidence: float
    log_joint: float
    about: str

    def named(self, problem: Problem, values: np.ndarray) -> Named:
        """Flat constrained globals, such as `mean`, as a dict of shaped arrays."""
        return _unflatten(problem.theta, values, ())

    def named_z(self, problem: Problem, values: np.ndarray) -> Named:
        """Constrained z [N, M], such as `z_mean`, as a dict of arrays with a leading axis N."""
        return _unflatten(problem.z, values, (problem.n_group,))


def reference(problem: Problem, folder: Path = REFERENCES) -> Reference:
    """The stored reference of a problem; an error when it belongs to other data."""
    path = Path(folder) / f"{problem.name}.npz"
    if not path.exists():
        raise FileNotFoundError(
            f"no reference for {problem.name}: run "
            f"python -m benchmarks.references --out {folder} --only {problem.name}"
        )
    with np.load(path, allow_pickle=False) as file:
        stored = dict(file)
    if str(stored["fingerprint"]) != problem.fingerprint():
        raise ValueError(
            f"{path} describes other data than problem {problem.name!r} now simulates: "
            f"run python -m benchmarks.references --out {folder} --only {problem.name} again"
        )
    index = stored.pop("z_index", None)  # groups with the same data share a row
    if index is not None:
        for name in ("z_mean", "z_sd", "zu_mean", "zu_sd"):
            stored[name] = stored[name][index]
    return Reference(**{name: _plain(stored[name]) for name in Reference._fields})


def for_ramify(problem: Problem) -> tuple[Any, Any]:
    """The problem as Ramify takes it: (rf.Model, rf.Groups)."""
    import ramify as rf

    def parameters(spec: Spec) -> Named:
        return {n: rf.constrained(CONSTRAINTS[kind], *shape) for n, (kind, shape) in spec.items()}

    model = rf.Model(
        theta=parameters(problem.theta),
        z=parameters(problem.z),
        log_prior=problem.log_prior,
        log_local=problem.log_local,
        log_lik=problem.log_lik,
    )
    groups = rf.Groups.from_table(
        problem.table, by="group", rows=list(problem.rows), group=list(problem.group)
    )
    return model, groups


def flat_names(spec: Spec) -> list[str]:
    """Names of the flattened constrained entries: mu[0], mu[1], chol[1,0]."""
    names = []
    for name, (_, shape) in spec.items():
        for index in np.ndindex(shape):
            names.append(f"{name}[{','.join(map(str, index))}]" if shape else name)
    return names


# (a) Hierarchical logistic regression with a full covariance of the coefficients.


def logistic(N: int = 1000, seed: int = 0, name: str | None = None) -> Problem:
    """Logistic regression, M = 5, D = 20; 5 to 300 rows a group, mean about 34, heavy-tailed."""
    rng = np.random.default_rng([1, N, seed])
    truth = {
        "mu": np.array([0.5, -0.8, 0.3, 0.0, 0.6]),
        "scale": np.array([1.0, 0.8, 0.7, 0.9, 0.6]),
        "off": np.array([0.4, -0.3, 0.2, 0.0, 0.3, -0.4, 0.2, -0.2, 0.1, 0.3]),
    }
    factor = np.diag(truth["scale"])
    factor[np.tril_indices(5, -1)] = truth["off"]
    truth["beta"] = truth["mu"] + rng.standard_normal((N, 5)) @ factor.T
    group = _ragged(rng, N, typical=21, spread=1.0, low=5, high=300)
    x = _tidy(np.column_stack([np.ones(group.size), rng.standard_normal((group.size, 4))]))
    logits = np.sum(x * truth["beta"][group], -1)
    y = (rng.random(group.size) < 1 / (1 + np.exp(-logits))).astype(np.int32)

    return Problem(
        name=name or f"logistic_{N}",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={"mu": ("real", (5,)), "scale": ("positive", (5,)), "off": ("real", (10,))},
        z={"beta": ("real", (5,))},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["scale"]).sum()
            + dist.Normal(0, 1).log_prob(theta["off"]).sum()
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mu"], scale_tril=lower_triangle(theta["scale"], theta["off"])
        ).log_prob(z["beta"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=jnp.dot(row["x"], z["beta"])).log_prob(
            row["y"]
        ),
        model=_logistic_model,
        truth=truth,
    )


def _logistic_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([5]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1).expand([5]).to_event(1))
    off = numpyro.sample("off", dist.Normal(0, 1).expand([10]).to_event(1))
    factor = lower_triangle(scale, off)
    with numpyro.plate("groups", n_group):
        beta = numpyro.sample("beta", dist.MultivariateNormal(mu, scale_tril=factor))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=(x * beta[group]).sum(-1)), obs=y)


def lower_triangle(scale: jax.Array, off: jax.Array) -> jax.Array:
    """A triangular factor from its diagonal [M] and, row by row, what is below it."""
    rows, columns = np.tril_indices(scale.shape[-1], -1)
    return jnp.diag(scale).at[rows, columns].set(off)


# (b) Poisson regression with correlated intercepts and slopes.


def poisson(N: int = 200, seed: int = 0) -> Problem:
    """Poisson counts, intercept and slope per group, an LKJ prior on their correlation."""
    rng = np.random.default_rng([2, N, seed])
    chol = np.array([[1.0, 0.0], [-0.4, np.sqrt(1 - 0.16)]])
    truth = {"mu": np.array([0.7, 0.3]), "tau": np.array([0.6, 0.4]), "chol": chol}
    truth["beta"] = truth["mu"] + rng.standard_normal((N, 2)) @ (truth["tau"][:, None] * chol).T
    group = _ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = _tidy(rng.standard_normal(group.size))
    beta = truth["beta"][group]
    y = rng.poisson(np.exp(beta[:, 0] + beta[:, 1] * x)).astype(np.int32)

    return Problem(
        name="poisson",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={
            "mu": ("real", (2,)),
            "tau": ("positive", (2,)),
            "chol": ("corr_cholesky", (2, 2)),
        },
        z={"beta": ("real", (2,))},
        log_prior=lambda theta: (
            dist.Normal(0, 1).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"]).sum()
            + dist.LKJCholesky(2, 2.0).log_prob(theta["chol"])
        ),
        log_local=lambda theta, z, group: dist.MultivariateNormal(
            theta["mu"], scale_tril=theta["tau"][:, None] * theta["chol"]
        ).log_prob(z["beta"]),
        log_lik=lambda theta, z, row: dist.Poisson(
            jnp.exp(z["beta"][0] + z["beta"][1] * row["x"])
        ).log_prob(row["y"]),
        model=_poisson_model,
        truth=truth,
    )


def _poisson_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", n_group):
        factor = tau[:, None] * chol
        beta = numpyro.sample("beta", dist.MultivariateNormal(mu, scale_tril=factor))
    with numpyro.plate("rows", x.shape[0]):
        rate = jnp.exp(beta[group, 0] + beta[group, 1] * x)
        numpyro.sample("y", dist.Poisson(rate), obs=y)


# (c) Negative binomial regression: the likelihood has a dispersion and a slope in theta.


def negative_binomial(N: int = 200, seed: int = 0) -> Problem:
    """Overdispersed counts with group intercepts; slope and dispersion are global."""
    rng = np.random.default_rng([3, N, seed])
    truth = {"mu": 1.0, "tau": 0.7, "slope": 0.5, "concentration": 1.5}
    truth["a"] = truth["mu"] + truth["tau"] * rng.standard_normal(N)
    group = _ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = _tidy(rng.standard_normal(group.size))
    mean = np.exp(truth["a"][group] + truth["slope"] * x)
    gamma = rng.gamma(truth["concentration"], mean / truth["concentration"])
    y = rng.poisson(gamma).astype(np.int32)

    return Problem(
        name="negative_binomial",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={
            "mu": ("real", ()),
            "tau": ("positive", ()),
            "slope": ("real", ()),
            "concentration": ("positive", ()),
        },
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"])
            + dist.HalfNormal(1).log_prob(theta["tau"])
            + dist.Normal(0, 1).log_prob(theta["slope"])
            + dist.LogNormal(0, 1).log_prob(theta["concentration"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["tau"]).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.NegativeBinomial2(
            jnp.exp(z["a"] + theta["slope"] * row["x"]), theta["concentration"]
        ).log_prob(row["y"]),
        model=_negative_binomial_model,
        truth=truth,
    )


def _negative_binomial_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    concentration = numpyro.sample("concentration", dist.LogNormal(0, 1))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("rows", x.shape[0]):
        mean = jnp.exp(a[group] + slope * x)
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


# (d) Student-t regression: not log-concave in z.


def student_t(N: int = 200, seed: int = 0) -> Problem:
    """Regression with heavy-tailed noise; its scale and degrees of freedom are global."""
    rng = np.random.default_rng([4, N, seed])
    truth = {"mu": np.array([1.0, -0.5]), "tau": np.array([0.8, 0.5]), "sigma": 0.7, "nu": 3.0}
    truth["beta"] = truth["mu"] + truth["tau"] * rng.standard_normal((N, 2))
    group = _ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = _tidy(rng.standard_normal(group.size))
    beta = truth["beta"][group]
    noise = truth["sigma"] * rng.standard_t(truth["nu"], group.size)
    y = _tidy(beta[:, 0] + beta[:, 1] * x + noise)

    return Problem(
        name="student_t",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={
            "mu": ("real", (2,)),
            "tau": ("positive", (2,)),
            "sigma": ("positive", ()),
            "nu": ("positive", ()),
        },
        z={"beta": ("real", (2,))},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"]).sum()
            + dist.HalfNormal(1).log_prob(theta["sigma"])
            + dist.Gamma(2.0, 0.1).log_prob(theta["nu"])
        ),
        log_local=lambda theta, z, group: (
            dist.Normal(theta["mu"], theta["tau"]).log_prob(z["beta"]).sum()
        ),
        log_lik=lambda theta, z, row: dist.StudentT(
            theta["nu"], z["beta"][0] + z["beta"][1] * row["x"], theta["sigma"]
        ).log_prob(row["y"]),
        model=_student_t_model,
        truth=truth,
    )


def _student_t_model(x, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("groups", n_group):
        beta = numpyro.sample("beta", dist.Normal(mu, tau).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        mean = beta[group, 0] + beta[group, 1] * x
        numpyro.sample("y", dist.StudentT(nu, mean, sigma), obs=y)


# (e) Ordered logit: the likelihood has ordered cutpoints in theta.


def ordered_logit(N: int = 200, seed: int = 0) -> Problem:
    """Four ordered answers, group intercepts around zero; cutpoints and slope are global."""
    rng = np.random.default_rng([5, N, seed])
    truth = {"cut": np.array([-1.2, 0.3, 1.6]), "slope": 0.8, "tau": 0.9}
    truth["a"] = truth["tau"] * rng.standard_normal(N)
    group = _ragged(rng, N, typical=8, spread=0.7, low=1, high=60)
    x = _tidy(rng.standard_normal(group.size))
    latent = truth["a"][group] + truth["slope"] * x + rng.logistic(size=group.size)
    y = np.searchsorted(truth["cut"], latent).astype(np.int32)

    return Problem(
        name="ordered_logit",
        table={"group": group, "x": x, "y": y},
        n_group=N,
        theta={"cut": ("ordered", (3,)), "slope": ("real", ()), "tau": ("positive", ())},
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            _ordered_prior().log_prob(theta["cut"])
            + dist.Normal(0, 1).log_prob(theta["slope"])
            + dist.HalfNormal(1).log_prob(theta["tau"])
        ),
        log_local=lambda theta, z, group: dist.Normal(0, theta["tau"]).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.OrderedLogistic(
            z["a"] + theta["slope"] * row["x"], theta["cut"]
        ).log_prob(row["y"]),
        model=_ordered_logit_model,
        truth=truth,
    )


def _ordered_prior() -> dist.Distribution:
    loc = jnp.array([-1.0, 0.0, 0.0])
    return dist.TransformedDistribution(dist.Normal(loc, 1.0), OrderedTransform())


def _ordered_logit_model(x, y=None, *, group, n_group):
    cut = numpyro.sample("cut", _ordered_prior())
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(0, tau))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(a[group] + slope * x, cut), obs=y)


# (f) A noise scale per group, with a Gamma prior: constrained z, log_local not Gaussian.


def varying_noise(N: int = 200, seed: int = 0) -> Problem:
    """Normal rows whose mean and noise scale both belong to the group; Gamma-distributed scales."""
    rng = np.random.default_rng([6, N, seed])
    truth = {"mu": 0.5, "tau": 1.0, "shape": 4.0, "level": 1.2}
    truth["m"] = truth["mu"] + truth["tau"] * rng.standard_normal(N)
    truth["sigma"] = rng.gamma(truth["shape"], truth["level"] / truth["shape"], N)
    group = _ragged(rng, N, typical=8, spread=0.7, low=3, high=60)
    y = _tidy(truth["m"][group] + truth["sigma"][group] * rng.standard_normal(group.size))

    return Problem(
        name="varying_noise",
        table={"group": group, "y": y},
        n_group=N,
        theta={
            "mu": ("real", ()),
            "tau": ("positive", ()),
            "shape": ("positive", ()),
            "level": ("positive", ()),
        },
        z={"m": ("real", ()), "sigma": ("positive", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"])
            + dist.HalfNormal(2).log_prob(theta["tau"])
            + dist.LogNormal(1.0, 0.7).log_prob(theta["shape"])
            + dist.HalfNormal(2).log_prob(theta["level"])
        ),
        log_local=lambda theta, z, group: (
            dist.Normal(theta["mu"], theta["tau"]).log_prob(z["m"])
            + dist.Gamma(theta["shape"], theta["shape"] / theta["level"]).log_prob(z["sigma"])
        ),
        log_lik=lambda theta, z, row: dist.Normal(z["m"], z["sigma"]).log_prob(row["y"]),
        model=_varying_noise_model,
        truth=truth,
    )


def _varying_noise_model(y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    shape = numpyro.sample("shape", dist.LogNormal(1.0, 0.7))
    level = numpyro.sample("level", dist.HalfNormal(2))
    with numpyro.plate("groups", n_group):
        m = numpyro.sample("m", dist.Normal(mu, tau))
        sigma = numpyro.sample("sigma", dist.Gamma(shape, shape / level))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(m[group], sigma[group]), obs=y)


# (g) Random-intercept logistic at large N; without covariates, so quadrature is cheap.


def random_intercept(N: int = 100_000, seed: int = 0) -> Problem:
    """Binary rows with a random intercept, 2 to 20 rows a group, D = 2, M = 1."""
    rng = np.random.default_rng([7, N, seed])
    truth = {"mu": -0.5, "sigma": 1.0}
    truth["a"] = truth["mu"] + truth["sigma"] * rng.standard_normal(N)
    group = np.repeat(np.arange(N, dtype=np.int32), rng.integers(2, 21, N))
    y = (rng.random(group.size) < 1 / (1 + np.exp(-truth["a"][group]))).astype(np.int32)

    return Problem(
        name="random_intercept",
        table={"group": group, "y": y},
        n_group=N,
        theta={"mu": ("real", ()), "sigma": ("positive", ())},
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["mu"]) + dist.HalfNormal(2).log_prob(theta["sigma"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["sigma"]).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.Bernoulli(logits=z["a"]).log_prob(row["y"]),
        model=_random_intercept_model,
        truth=truth,
    )


def _random_intercept_model(y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(mu, sigma))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group]), obs=y)


# (h) Eight schools, and houses in counties.


def eight_schools(N: int = 8, seed: int = 0) -> Problem:
    """Rubin's eight schools: one row a group, its standard error known; N < 8 takes the first N."""
    del seed
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])[:N]
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])[:N]
    return Problem(
        name="eight_schools",
        table={"group": np.arange(y.size, dtype=np.int32), "error": error, "y": y},
        n_group=y.size,
        theta={"mu": ("real", ()), "tau": ("positive", ())},
        z={"effect": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 5).log_prob(theta["mu"]) + dist.HalfCauchy(5).log_prob(theta["tau"])
        ),
        log_local=lambda theta, z, group: dist.Normal(theta["mu"], theta["tau"]).log_prob(
            z["effect"]
        ),
        log_lik=lambda theta, z, row: dist.Normal(z["effect"], row["error"]).log_prob(row["y"]),
        model=_eight_schools_model,
        truth={"mu": 5.0, "tau": 3.0, "effect": np.full(y.size, 5.0)},
        non_centred=("effect",),
    )


def _eight_schools_model(error, y=None, *, group, n_group):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("groups", n_group):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("rows", error.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], error), obs=y)


def radon(N: int = 85, seed: int = 0) -> Problem:
    """Houses in counties, like the Minnesota radon data: a county covariate, a floor effect."""
    rng = np.random.default_rng([8, N, seed])
    uranium = _tidy(rng.normal(0.0, 0.4, N))
    truth = {"gamma": np.array([1.4, 0.7]), "tau": 0.3, "floor_effect": -0.7, "sigma": 0.75}
    mean = truth["gamma"][0] + truth["gamma"][1] * uranium
    truth["a"] = mean + truth["tau"] * rng.standard_normal(N)
    group = _ragged(rng, N, typical=6, spread=1.0, low=1, high=120)
    floor = (rng.random(group.size) < 0.17).astype(np.float64)
    noise = truth["sigma"] * rng.standard_normal(group.size)
    y = _tidy(truth["a"][group] + truth["floor_effect"] * floor + noise)

    return Problem(
        name="radon",
        table={"group": group, "floor": floor, "y": y, "uranium": uranium[group]},
        n_group=N,
        theta={
            "gamma": ("real", (2,)),
            "tau": ("positive", ()),
            "floor_effect": ("real", ()),
            "sigma": ("positive", ()),
        },
        z={"a": ("real", ())},
        log_prior=lambda theta: (
            dist.Normal(0, 2).log_prob(theta["gamma"]).sum()
            + dist.HalfNormal(1).log_prob(theta["tau"])
            + dist.Normal(0, 2).log_prob(theta["floor_effect"])
            + dist.HalfNormal(2).log_prob(theta["sigma"])
        ),
        log_local=lambda theta, z, group: dist.Normal(
            theta["gamma"][0] + theta["gamma"][1] * group["uranium"], theta["tau"]
        ).log_prob(z["a"]),
        log_lik=lambda theta, z, row: dist.Normal(
            z["a"] + theta["floor_effect"] * row["floor"], theta["sigma"]
        ).log_prob(row["y"]),
        model=_radon_model,
        group=("uranium",),
        truth=truth,
        non_centred=("a",),
    )


def _radon_model(floor, y=None, *, uranium, group, n_group):
    gamma = numpyro.sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    floor_effect = numpyro.sample("floor_effect", dist.Normal(0, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", n_group):
        a = numpyro.sample("a", dist.Normal(gamma[0] + gamma[1] * uranium, tau))
    with numpyro.plate("rows", floor.shape[0]):
        numpyro.sample("y", dist.Normal(a[group] + floor_effect * floor, sigma), obs=y)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "logistic_100": partial(logistic, N=100, name="logistic_100"),
    "logistic_1000": partial(logistic, N=1000, name="logistic_1000"),
    "poisson": poisson,
    "negative_binomial": negative_binomial,
    "student_t": student_t,
    "ordered_logit": ordered_logit,
    "varying_noise": varying_noise,
    "random_intercept": random_intercept,
    "eight_schools": eight_schools,
    "radon": radon,
}


def make(name: str, N: int | None = None, seed: int = 0) -> Problem:
    """The problem of that name, at its own size or at N groups."""
    size = {} if N is None else {"N": N}
    return PROBLEMS[name](seed=seed, **size)


def _ragged(rng, N, *, typical, spread, low, high) -> np.ndarray:
    """Group numbers of the rows, sizes log-normal around `typical` and clipped to [low, high]."""
    sizes = np.exp(np.log(typical) + spread * rng.standard_normal(N))
    count = np.clip(np.round(sizes), low, high).astype(np.int64)
    return np.repeat(np.arange(N, dtype=np.int32), count)


def _tidy(values: np.ndarray) -> np.ndarray:
    """Rounded, so that the last bits of a platform's arithmetic do not change the data."""
    return np.round(values, 4) + 0.0


def _random_value(rng, scale, kind, shape, batch) -> jax.Array:
    transform = biject_to(CONSTRAINTS[kind])
    free = transform.inverse_shape(batch + shape)
    return transform(jnp.asarray(scale * rng.standard_normal(free)))


def _unflatten(spec: Spec, values: np.ndarray, batch: tuple[int, ...]) -> Named:
    sizes = [int(np.prod(shape)) for _, shape in spec.values()]
    parts = np.split(np.asarray(values), np.cumsum(sizes)[:-1], axis=-1)
    named = zip(spec.items(), parts, strict=True)
    return {name: part.reshape(batch + shape) for (name, (_, shape)), part in named}


def _plain(value: np.ndarray) -> Any:
    """What an array of a file stands for: a list of names, a string, a float or the array."""
    if value.dtype.kind == "U":
        return str(value) if value.ndim == 0 else [str(one) for one in value]
    return float(value) if value.ndim == 0 else value
