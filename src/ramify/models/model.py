"""Model: named parameters and three log densities, as functions of a block for the library.

A user writes densities on named, constrained values; below the public API everything works on flat
unconstrained vectors, theta [D] and z [B, M]. `Model` alone adds the Jacobians.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import constraints

from ramify.data.batch import Batch, Theta, Z, ZRows
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.models.adapter import Adapter, local_values
from ramify.models.parameters import Named, Parameter, Space
from ramify.models.several import SeveralModel
from ramify.models.structure import BlockStructure, Structure
from ramify.numerics.budgets import theta_points
from ramify.numerics.chunks import in_chunks
from ramify.numerics.precision import computing
from ramify.numerics.programs import brief_program


class Model:
    """A hierarchical model p(theta) prod_i p(z_i | theta, u_i) prod_j p(y_ij | theta, z_i, x_ij).

    The three densities are written for one group and one row, on dictionaries of named, constrained
    values. The library adds the Jacobians: write each density for the value as you name it.

    Args:
        theta: name -> parameter, the globals.
        z: name -> parameter, the locals of one group. With several grouping factors z and log_local
            are given by factor, z={"user": {...}, "movie": {...}}, and a row sees
            z["movie"]["quality"]: see `docs/levels.md`.
        log_prior: theta -> [], log p(theta).
        log_local: theta, z, group -> [], log p(z_i | theta, u_i); `group` has the group columns.
        log_lik: theta, z, row -> [], log p(y_ij | theta, z_i, x_ij); `row` has the row columns and
            those of its group.
        simulate: key, theta, z, row -> a new outcome of that row, for `predict`.
        structure: what you know of log_local and log_lik. Optional: fits compile and run faster, with
            the same results. `fit` compares it with the densities and refuses what disagrees.

    Example:
        >>> import numpyro.distributions as dist
        >>> from ramify.models.parameters import positive, real
        >>> model = Model(
        ...     theta={"mu": real(), "tau": positive()},
        ...     z={"b": real()},
        ...     log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"])
        ...     + dist.HalfNormal(1).log_prob(t["tau"]),
        ...     log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]),
        ...     log_lik=lambda t, z, row: dist.Normal(z["b"], 1.0).log_prob(row["y"]),
        ... )
        >>> model
        Model(theta: mu [], tau [] positive; z: b [])

        The same b, with a slope on x that varies as well. Both are normal, and a row sees them in
        one linear predictor, b + slope x:

        >>> from ramify.models.structure import LinearPredictors, NormalPrior, Structure
        >>> mean, sds = lambda t, group: t["mu"], lambda t, group: t["tau"]
        >>> density = lambda t, eta, row: dist.Bernoulli(logits=eta[0]).log_prob(row["y"])
        >>> weights = lambda row: jnp.stack([jnp.ones(()), row["x"]])[None]  # [P, M], P = 1
        >>> model = Model(
        ...     theta={"mu": real(2), "tau": positive(2)},
        ...     z={"b": real(2)},
        ...     log_prior=lambda t: dist.Normal(0, 1).log_prob(t["mu"]).sum()
        ...     + dist.HalfNormal(1).log_prob(t["tau"]).sum(),
        ...     log_local=lambda t, z, group: dist.Normal(t["mu"], t["tau"]).log_prob(z["b"]).sum(),
        ...     log_lik=lambda t, z, row: density(t, weights(row) @ z["b"], row),
        ...     structure=Structure(
        ...         prior=NormalPrior(mean, sds),
        ...         likelihood=LinearPredictors(weights, lambda t, row: jnp.zeros(1), density),
        ...     ),
        ... )
    """

    structure: BlockStructure  # what is known of the densities

    if not TYPE_CHECKING:  # type checkers expect that a call makes a Model

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """A `SeveralModel` where z is given by factor."""
            z = kwargs.get("z", args[1] if len(args) > 1 else None)
            if cls is Model and isinstance(z, Mapping) and any(map(_by_factor, z.values())):
                return several(*args, **kwargs)
            return super().__new__(cls)

    def __init__(
        self,
        theta: Mapping[str, Parameter],
        z: Mapping[str, Parameter],
        log_prior: Callable[[Named], Array],
        log_local: Callable[[Named, Named, Named], Array],
        log_lik: Callable[[Named, Named, Named], Array],
        simulate: Callable[[PRNGKeyArray, Named, Named, Named], Array] | None = None,
        structure: Structure | None = None,
    ):
        _check_names(theta, z)
        self.theta, self.z = Space(theta), Space(z)
        self._log_prior, self._log_local, self._log_lik = log_prior, log_local, log_lik
        self._simulate = simulate
        self.structure = structure.on_blocks(self.theta) if structure else BlockStructure()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(theta: {_describe(self.theta)}; z: {_describe(self.z)})"

    @property
    def can_simulate(self) -> bool:
        """Whether the model can make new outcomes."""
        return self._simulate is not None

    @property
    def adapter(self) -> Adapter:
        """The model's adapter, which reads tables and names results; front ends override it."""
        return Adapter(self)

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        """Log p(theta) of the unconstrained theta, Jacobian included."""
        values, log_det = self.theta.constrain(theta)
        return self._log_prior(values) + log_det

    def log_local(self, theta: Theta, z: Z, batch: Batch) -> Float[Array, " B"]:
        """Log p(z_i | theta, u_i) of each place's unconstrained z, Jacobian included."""
        return self.log_local_of(theta, z, batch.group)

    def log_local_of(self, theta: Theta, z: Z, columns: Named) -> Float[Array, " B"]:
        """The same for groups with these columns."""
        named_theta = self.theta.values(theta)

        def one(z: Float[Array, " M"], group: Named) -> Float[Array, ""]:
            values, log_det = self.z.constrain(z)
            return self._log_local(named_theta, values, group) + log_det

        return jax.vmap(one)(z, columns)

    def log_lik(self, theta: Theta, z_rows: ZRows, batch: Batch) -> Float[Array, " R"]:
        """Log p(y_ij | theta, z_i, x_ij) of each row, given each row's own copy of its z."""
        named_theta = self.theta.values(theta)
        one = lambda z, row: self._log_lik(named_theta, self.z.values(z), row)
        return jax.vmap(one)(z_rows, batch.rows | batch.group_at_rows())

    def simulate(self, key: PRNGKeyArray, theta: Theta, z_rows: ZRows, batch: Batch) -> Array:
        """A new outcome for each row, [R, ...]; each row has its own key."""
        if self._simulate is None:
            raise ValueError(
                "predict needs a model that can make new outcomes; give Model a "
                "simulate=lambda key, theta, z, row: ... that returns one row's outcome."
            )
        simulate, named_theta = self._simulate, self.theta.values(theta)
        one = lambda key, z, row: simulate(key, named_theta, self.z.values(z), row)
        keys = jax.random.split(key, z_rows.shape[0])
        return jax.vmap(one)(keys, z_rows, batch.rows | batch.group_at_rows())

    @computing
    def sample_prior(
        self, draws: int = 1000, groups: Groups | None = None, seed: int = 0
    ) -> dict[str, np.ndarray]:
        """Draws from the prior, by name and constrained; `rf.prior_predictive` draws outcomes too.

        For a model of log densities, theta is drawn by NUTS from `log_prior`.

        Args:
            draws: S.
            groups: the groups whose z to draw as well; by default none.
            seed: draws are a function of it.

        Returns:
            {"mu": [S, ...]} and with groups {"beta": [S, N, ...]}, as `Posterior.sample` has them.
        """
        adapter, rng = self.adapter, np.random.default_rng(seed)
        if groups is None:
            sampler = adapter.theta_sampler()
            theta = np.stack([np.asarray(sampler(own)) for own in rng.spawn(draws)])
            return jax.tree.map(np.asarray, adapter.global_values(theta))
        simulator = adapter.simulator(groups)
        theta, z, _ = zip(*map(simulator, rng.spawn(draws)), strict=True)
        return named_draws(adapter, np.stack(theta), np.stack(z), groups)

    def check(self, batch: Batch) -> None:
        """Raises if a function of the user's returns a wrong type or shape, or lacks a column."""
        theta, z = (jax.eval_shape(s.values, _flat(s)) for s in (self.theta, self.z))
        one = lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype)
        rows, group = jax.tree.map(one, (batch.rows, batch.group))
        row = rows | group
        check_scalar("log_prior(theta)", self._log_prior, theta)
        check_scalar("log_local(theta, z, group)", self._log_local, theta, z, group)
        check_scalar("log_lik(theta, z, row)", self._log_lik, theta, z, row)
        if self._simulate is not None:
            what, key = "simulate(key, theta, z, row)", jax.eval_shape(jax.random.key, 0)
            _check_outcome(what, self._simulate, key, theta, z, row)


def named_draws(
    adapter: Adapter, theta: Float[np.ndarray, "S D"], z: Float[np.ndarray, "S N M"], groups: Groups
) -> dict[str, np.ndarray]:
    """Draws of theta, and of z of all groups, by name and constrained."""
    locally = local_values(adapter, theta, z, whole(groups))
    return jax.tree.map(np.asarray, {**adapter.global_values(theta), **locally})


def log_priors(model: Model, thetas: Float[np.ndarray, "S D"]) -> Float[np.ndarray, " S"]:
    """Log p(theta) of each of many thetas, in the unconstrained scale."""
    # Uses the program that the search for theta compiles, so that later steps need no other.
    values = lambda chunk: expand_priors(model, chunk, False)[0]
    return in_chunks(values, thetas, theta_points(model.theta.size))


@brief_program
def expand_priors(
    model: Model, thetas: Float[Array, "S D"], curved: bool
) -> tuple[Float[Array, " S"], Float[Array, "S D"], Float[Array, "S D D"]]:
    """Log p(theta) with its gradient and, if wanted, its Hessian at each theta."""
    value, slope = jax.vmap(jax.value_and_grad(model.log_prior))(thetas)
    if not curved:
        return value, slope, jnp.zeros((*slope.shape, slope.shape[1]))
    return value, slope, jax.vmap(jax.hessian(model.log_prior))(thetas)


def _by_factor(parameter: Any) -> bool:
    return isinstance(parameter, Mapping)


def several(
    theta: Mapping[str, Parameter],
    z: Mapping[str, Mapping[str, Parameter]],
    log_prior: Callable[..., Array],
    log_local: Mapping[str, Callable[..., Array]],
    log_lik: Callable[..., Array],
    simulate: Callable[..., Array] | None = None,
    structure: Any = None,
) -> SeveralModel:
    """A model with several grouping factors; the arguments are those of `Model`."""
    if structure is not None:
        raise ValueError("structure= is for models with one grouping factor: leave it out.")
    for name, own in z.items():
        if not _by_factor(own):
            raise TypeError(
                f"z[{name!r}] is a {type(own).__name__}, and other entries of z are dicts: give all of "
                'them by factor, z={"user": {...}, "movie": {...}}.'
            )
    if len(z) < 2:
        raise ValueError(
            f"z is given by factor, and there is one, {next(iter(z))!r}: for one grouping factor write "
            "z={name: parameter}, without the factor."
        )
    if not isinstance(log_local, Mapping) or {*log_local} != {*z}:
        names = ", ".join(map(repr, z))
        raise ValueError(f"log_local must be a dict with a function for each factor of z: {names}.")
    seen: dict[str, str] = {}
    for factor, own in z.items():
        _check_names(theta, own)
        for name in own:
            if name in seen:
                raise ValueError(
                    f"Model has a parameter named {name!r} in both z[{seen[name]!r}] and z[{factor!r}]; "
                    "names must differ, since results are looked up by name. Rename one of them."
                )
            seen[name] = factor
    return SeveralModel(theta, z, (log_prior, dict(log_local), log_lik), simulate)


def _check_names(theta: Mapping[str, Parameter], z: Mapping[str, Parameter]) -> None:
    for kind, parameters in (("theta", theta), ("z", z)):
        if not parameters:
            raise ValueError(f"Model needs at least one parameter in {kind}; got none.")
        for name, parameter in parameters.items():
            if not isinstance(parameter, Parameter):
                raise TypeError(
                    f"Model expected {kind}[{name!r}] to be a parameter such as rf.real(5) or "
                    f"rf.positive(); got {type(parameter).__name__}."
                )
    twice = sorted(set(theta) & set(z))
    if twice:
        raise ValueError(
            f"Model has a parameter named {twice[0]!r} in both theta and z; "
            "names must differ, since results are looked up by name. Rename one of them."
        )


def check_model_and_groups(model: Any, groups: Any, function: str) -> None:
    """Raises unless a public function got a model and groups, in this order."""
    call = f"{function}(model, groups)"
    if isinstance(model, Groups) and isinstance(groups, Model):
        raise TypeError(f"the arguments are swapped: expected {call}.")
    if getattr(type(model), "several_factors", False):
        raise ValueError(
            f"{function} is not there yet for models with several grouping factors: see docs/levels.md."
        )
    if not isinstance(model, Model):
        raise TypeError(
            f"model is a {type(model).__name__}; expected {call} with a model from rf.Model, "
            "rf.from_formula or rf.from_numpyro."
        )
    if not isinstance(groups, Groups):
        raise TypeError(
            f"groups is a {type(groups).__name__}; expected {call} with rf.Groups: make them by "
            "rf.Groups.from_table(table, by=..., rows=[...]). rf.from_formula returns its own."
        )


def _describe(space: Space) -> str:
    kind = lambda p: "" if p.constraint is constraints.real else f" {p.support}"
    return ", ".join(f"{n} {list(p.shape)}{kind(p)}" for n, p in space.parameters.items())


def _flat(space: Space) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((space.size,), jnp.result_type(float))


def check_scalar(what: str, density: Callable[..., Any], *arguments: Any) -> None:
    """Raises unless a density returns one number and uses only known parameters and columns."""
    try:
        out = jax.eval_shape(density, *arguments)
    except KeyError as error:
        have = ", ".join(sorted({name for columns in arguments for name in columns}))
        raise ValueError(
            f"{what} asks for {error.args[0]!r}, which is neither a parameter nor a column of the "
            f"data; there are: {have}."
        ) from error
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise TypeError(
            f"{what} uses Python's if, float() or a NumPy function on a value that JAX traces: use "
            "jnp.where and the functions of jax.numpy."
        ) from error
    if hasattr(out, "log_prob"):
        raise TypeError(
            f"{what} returns a distribution, {type(out).__name__}; expected a log density: call its "
            ".log_prob(value)."
        )
    if getattr(out, "dtype", None) is not None and not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(
            f"{what} returns a number of type {out.dtype}; expected a floating-point log density."
        )
    shape = list(out.shape) if hasattr(out, "shape") else type(out).__name__
    if shape != []:
        one = what.rstrip(")").split(", ")[-1].split("(")[-1]  # its last argument
        raise ValueError(
            f"{what} must return one number (shape []), the log density for one {one}; got shape "
            f"{shape}. Sum over the event, for example with .to_event(1) or jnp.sum."
        )


def _check_outcome(what: str, simulate: Callable[..., Any], key: Any, *arguments: Any) -> None:
    """Raises if a user's simulator does not return one array."""
    try:
        out = jax.eval_shape(simulate, key, *arguments)
    except Exception:  # it may need columns that only the table for `predict` has
        return
    if not isinstance(out, jax.ShapeDtypeStruct):
        have = f" of {', '.join(map(repr, out))}" if isinstance(out, dict) else ""
        raise ValueError(
            f"{what} must return one row's new outcome, a number or an array; got "
            f"{type(out).__name__}{have}."
        )
