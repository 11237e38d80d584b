"""A NumPyro function as the three densities of a block, and its adapter."""

from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ramify.data.batch import Batch, Theta, Z, ZRows
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.frontends.numpyro.arguments import Refused, repeated
from ramify.frontends.numpyro.around import drawn_around
from ramify.frontends.numpyro.evaluator import Evaluator
from ramify.frontends.numpyro.simulation import simulator, theta_sampler
from ramify.frontends.numpyro.sites import draw
from ramify.models.adapter import Adapter
from ramify.models.model import Model
from ramify.models.parameters import Named
from ramify.models.simulation import Simulator, ThetaSampler
from ramify.models.structure import BlockStructure, Normal


@final
class NumpyroModel(Model):
    """A model made by `from_numpyro`; `outcome` is the observed site that `simulate` draws."""

    def __init__(
        self, evaluator: Evaluator, outcome: str | None = None, *, normal_prior: bool = False
    ):
        """Raises if the outcome is not a site observed in the rows."""
        known = list(evaluator.layout.outcomes)
        if outcome is not None and outcome not in known:
            those = ", ".join(known) or "none"
            raise Refused(
                f'outcome="{outcome}" is not a site observed in the rows; those: {those}.'
            )
        self.theta, self.z = evaluator.theta, evaluator.z
        self.evaluator, self.fn, self.layout = evaluator, evaluator.fn, evaluator.layout
        self.outcome = outcome or (known[0] if len(known) == 1 else None)
        normal = self._normal if normal_prior else None
        self.structure = BlockStructure(normal, trusted=True, around=drawn_around(evaluator))

    def __repr__(self) -> str:
        """The parameters with their shapes and supports, and the other sites."""
        layout = self.layout
        observed = [n for n in layout.terms if n not in layout.theta and n not in layout.z]
        words = {"observed": observed, "deterministic": layout.deterministics}
        words["left out"] = layout.left_out
        words["columns not read"] = self.evaluator.arguments.unread
        rest = "".join(f"; {title}: {', '.join(names)}" for title, names in words.items() if names)
        return f"{super().__repr__()[:-1]}{rest})"

    @property
    def can_simulate(self) -> bool:
        """Whether there is exactly one outcome to draw, or one was named."""
        return self.outcome is not None

    @property
    def adapter(self) -> "NumpyroAdapter":
        """Names results as the function names its sites."""
        return NumpyroAdapter(self)

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        """Log p(theta) of the unconstrained theta, Jacobian included."""
        terms = self.evaluator.evaluate("term", "theta", theta)
        return sum(terms.values(), self.theta.constrain(theta)[1])

    def _normal(self, theta: Theta, batch: Batch) -> Normal:
        """p(z_i | theta, u_i) of each place, by the distributions of its sites."""
        return self.evaluator.normal_prior(theta, batch.group, batch.index.shape[0])

    def log_local(self, theta: Theta, z: Z, batch: Batch) -> Float[Array, " B"]:
        """Log p(z_i | theta, u_i) of each place, and of what is observed of the group itself."""
        terms = self.evaluator.evaluate("term", "z", theta, z, group=batch.group)
        return sum(terms.values(), jax.vmap(self.z.constrain)(z)[1])

    def log_lik(self, theta: Theta, z_rows: ZRows, batch: Batch) -> Float[Array, " R"]:
        """Log p(y_ij | theta, z_i, x_ij) of each row, given each row's own copy of its z."""
        terms = self.adapter.log_lik_by_outcome(theta, z_rows, batch)
        return sum(terms.values(), jnp.zeros(z_rows.shape[0], z_rows.dtype))

    def simulate(self, key: PRNGKeyArray, theta: Theta, z_rows: ZRows, batch: Batch) -> Array:
        """A new outcome for each row, [R, ...]: the model run forward, latent sites as given."""
        # Outcome columns are None if the model allows it, as in `numpyro.infer.Predictive`. Otherwise
        # the data are passed, and the observed sites are drawn nevertheless.
        if self.outcome is None:
            raise ValueError(_no_outcome(list(self.layout.outcomes)))
        own, n = self.evaluator, z_rows.shape[0]
        told = {c for columns in self.layout.outcomes.values() for c in columns}
        rows = {c: v for c, v in repeated(own.row, n).items() if c in told} | batch.rows
        rows = {c: v for c, v in rows.items() if c not in told & own.arguments.optional}
        keywords = own.keywords(n, rows, batch.group_at_rows())
        again = frozenset(self.layout.outcomes)
        values = draw(key, own.fn, keywords, own.latent_values(theta, z_rows), again)
        return self.layout.terms[self.outcome].per_item(values[self.outcome])

    def check(self, batch: Batch) -> None:
        """Raises if the data lack a column of the model's, or have it in another shape."""
        own = self.evaluator
        for kind, mine, theirs in (("row", own.row, batch.rows), ("group", own.group, batch.group)):
            for name, column in mine.items():
                got = theirs[name].shape[1:] if name in theirs else None
                if got != column.shape[1:]:
                    has = "no such column" if got is None else f"elements of {list(got)}"
                    raise ValueError(
                        f'the model was made for a {kind} column "{name}" with elements of shape '
                        f"{list(column.shape[1:])}; the data has {has}."
                    )


def _no_outcome(observed: list[str]) -> str:
    if observed:
        return (
            f"predict draws one outcome, and the model observes {', '.join(observed)} in its rows: "
            'name one, from_numpyro(fn, groups, outcome="...").'
        )
    return (
        "predict draws an outcome for each row, and the model observes none in its rows: a "
        "numpyro.factor has a density and nothing to draw from. Observe the outcome in a "
        'numpyro.sample("...", distribution, obs=...), or simulate it from posterior.sample().'
    )


@final
class NumpyroAdapter(Adapter):
    """Names the results of a `NumpyroModel`: latent sites, deterministic sites, observed sites."""

    model: NumpyroModel

    @property
    def outcome(self) -> str | None:
        """The site that `simulate` draws."""
        return self.model.outcome

    @property
    def _evaluate(self) -> Any:
        return self.model.evaluator.evaluate

    def named_theta(self, theta: Theta) -> Named:
        """Named constrained values of theta, and the deterministic sites that follow from them."""
        return self.model.theta.values(theta) | self._evaluate("value", "theta", theta)

    def local_values(self, theta: Theta, z: Z, batch: Batch) -> Named:
        """Named constrained z of each place, [B, ...], and its deterministic sites."""
        deterministic = self._evaluate("value", "z", theta, z, group=batch.group)
        return jax.vmap(self.model.z.values)(z) | deterministic

    def observed(self, batch: Batch) -> Named:
        """The values of the sites observed in the rows, [R, ...]."""
        theta, z = (jnp.zeros(s.size) for s in (self.model.theta, self.model.z))
        z_rows = jnp.broadcast_to(z, (batch.segment.shape[0], len(z)))
        return self._evaluate("observed", "row", theta, z_rows, batch.rows, batch.group_at_rows())

    def theta_sampler(self) -> ThetaSampler:
        """Runs the function forward, on one row."""
        return theta_sampler(self.model.evaluator)

    def simulator(self, groups: Groups) -> Simulator:
        """Runs the function forward on all rows."""
        return simulator(self.model.evaluator, self.observed(whole(groups)), groups)

    def log_lik_by_outcome(self, theta: Theta, z_rows: ZRows, batch: Batch) -> Named:
        """The log likelihood of each row, [R], for each site observed in the rows."""
        return self._evaluate("term", "row", theta, z_rows, batch.rows, batch.group_at_rows())
