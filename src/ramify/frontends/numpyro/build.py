"""Models written in NumPyro, unchanged: the flat function that its author would give to NUTS."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

from ramify.data.groups import Groups
from ramify.frontends.numpyro.agreement import check_agreement
from ramify.frontends.numpyro.arguments import Refused, read_arguments, warn_of_unread
from ramify.frontends.numpyro.evaluator import Evaluator
from ramify.frontends.numpyro.layout import SiteLayout, sort_sites
from ramify.frontends.numpyro.model import NumpyroModel
from ramify.frontends.numpyro.several import NumpyroSeveral
from ramify.frontends.numpyro.several_build import several_from_numpyro
from ramify.numerics.precision import computing

_SUFFIX = "_decentered"  # of the sites that LocScaleReparam makes


@computing
def from_numpyro(
    fn: Callable[..., Any],
    groups: Groups,
    *,
    plate: str | None = None,
    index: str | None = None,
    size: str | None = None,
    outcome: str | None = None,
    centre: bool = True,
) -> NumpyroModel | NumpyroSeveral:
    """A model from a NumPyro function, as it would be given to NUTS.

    Its arguments are found by name: columns of the groups (row columns [R, ...], group columns
    [B, ...]), the group number of each row and the number of groups. An argument for the outcome
    whose default is None is left out for prediction. Sites are sorted by what their sizes depend
    on: latent sites with a value for each group are that group's z, other latent sites are theta.
    Sizes inside the function must come from its arguments. A function that takes no group numbers
    is one for groups of a single row each.

    With data of several grouping factors the function takes `user`, `n_user`, `movie`, `n_movie` and
    so on and has a plate for each. Where one factor is nested in another, `school_of_klass` is the
    school of each class, so that a class may be drawn around its school's effect.

    Args:
        fn: the model, possibly wrapped in handlers such as `reparam`.
        groups: the data. A few rows are used to look at the model; it can be fitted to others.
        plate: name of the group plate, to have it checked that the groups' sites are in it.
        index: name of the argument with each row's group number; by default the groups' `by`.
        size: name of the argument with the number of groups; by default `n_` and the `by`.
        outcome: the observed site that `predict` draws, where there are several.
        centre: take LocScaleReparam off the groups' sites. It is there for samplers, which follow
            theta and z together; where z is integrated out for each theta, the centred form is
            better, since then the rows determine z for any theta. False keeps the model as it is.

    Raises:
        ValueError: if the model is outside of what Ramify fits; the message names the site and says
            what to do.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def schools(error, y=None, *, school, n_school):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 5))
        ...     tau = numpyro.sample("tau", dist.HalfCauchy(5))
        ...     with numpyro.plate("schools", n_school):
        ...         effect = numpyro.sample("effect", dist.Normal(mu, tau))
        ...     with numpyro.plate("rows", error.shape[0]):
        ...         numpyro.sample("y", dist.Normal(effect[school], error), obs=y)
        >>> table = {"school": ["A", "B"], "y": [28.0, 8.0], "error": [15.0, 10.0]}
        >>> groups = Groups.from_table(table, by="school", rows=["y", "error"])
        >>> from_numpyro(schools, groups)
        NumpyroModel(theta: mu [], tau [] positive; z: effect []; observed: y)
    """
    try:
        if groups.factors:
            for option, given in {"plate": plate, "index": index, "size": size}.items():
                if given is not None:
                    raise Refused(f"{option}= is for one grouping factor: leave it out.")
            return several_from_numpyro(fn, groups, outcome, _taken_off if centre else None)
        arguments = read_arguments(fn, groups, index, size)
        layout = sort_sites(fn, arguments, groups, plate)
        run, away = fn, _decentred(layout)
        if centre and away:
            run = _taken_off(away)(fn)
            layout = sort_sites(run, arguments, groups, plate)
        mixed, normal = check_agreement(Evaluator(run, arguments, layout, groups), groups)
        evaluator = Evaluator(run, arguments, layout.without(mixed), groups)
        warn_of_unread(arguments.unread, arguments.empty)
        return NumpyroModel(evaluator, outcome, normal_prior=normal)
    except Refused as refused:
        inner = getattr(fn, "func", fn)  # of a functools.partial
        name = getattr(inner, "__name__", type(inner).__name__)
        raise ValueError(f"from_numpyro({name}): {refused}") from refused.__cause__


# In the non-centred form, x = loc + scale * e with e ~ N(0, 1), the posterior of e moves with theta, by
# many of its sds where a group has many rows. In the centred form, x ~ N(loc, scale), the rows
# determine x whatever theta is. NUTS prefers the first where rows are few. Ramify integrates over the
# group sites with points that stay fixed while theta moves, which needs the second.


def _decentred(layout: SiteLayout) -> frozenset[str]:
    """Names of the groups' sites that LocScaleReparam has made deterministic."""
    names = (n.removesuffix(_SUFFIX) for n in layout.z if n.endswith(_SUFFIX))
    return frozenset(n for n in names if n in layout.deterministics)


@contextmanager
def _taken_off(names: frozenset[str]) -> Iterator[None]:
    """Makes NumPyro's `reparam` skip LocScaleReparam at these sites.

    A handler inside the function runs before any of ours, so its class is changed during a run. Runs
    can't overlap in any case, since NumPyro's stack of handlers is global.
    """
    own = handlers.reparam.process_message

    def process(self: handlers.reparam, msg: Any) -> None:
        if not (msg["type"] == "sample" and msg["name"] in names):
            return own(self, msg)
        config: Any = self.config
        found = config.get(msg["name"]) if isinstance(config, dict) else config(msg)
        return None if isinstance(found, LocScaleReparam) else own(self, msg)

    handlers.reparam.process_message = process
    try:
        yield
    finally:
        handlers.reparam.process_message = own
