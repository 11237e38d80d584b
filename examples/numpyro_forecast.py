"""Trips between stations, hour by hour: NumPyro's tutorial on hierarchical forecasting.

The model is that of "Hierarchical Forecasting" in the NumPyro documentation, except that sizes are
arguments: there, the numbers of origins and destinations are equal, and a season has the 168 hours of
a week. A group is an origin. Its data are one row: the series to every destination. The z of an origin
is a season, a scale, and an affinity to each destination. Parameters of a destination are shared by
all origins. The data are simulated.

    python examples/numpyro_forecast.py
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.infer.reparam import LocScaleReparam

import ramify as rf


def periodic_repeat_jax(tensor: Array, size: int, dim: int) -> Array:
    """Repeat a period-sized tensor up to given size using JAX."""
    assert isinstance(size, int) and size >= 0
    assert isinstance(dim, int)
    if dim >= 0:
        dim -= tensor.ndim

    period = tensor.shape[dim]
    repeats = [1] * tensor.ndim
    repeats[dim] = (size + period - 1) // period
    result = jnp.tile(tensor, repeats)

    slices = [slice(None)] * tensor.ndim
    slices[dim] = slice(None, size)

    return result[tuple(slices)]


def model(covariates: Array, y: Array | None = None, hours: int = 24 * 7) -> None:
    # Get the time and feature dimensions
    n_origin, n_destin, t_max = covariates.shape

    # Define the plates to be able to use them below
    origin_plate = numpyro.plate("origin", n_origin, dim=-3)
    destin_plate = numpyro.plate("destin", n_destin, dim=-2)
    hour_of_week_plate = numpyro.plate("hour_of_week", hours, dim=-1)

    # Global scale for the drift
    drift_scale = numpyro.sample("drift_scale", dist.LogNormal(loc=-20, scale=5))

    # Sample the centered parameter for the LocScaleReparam
    destin_centered = numpyro.sample("destin_centered", dist.Uniform(low=0, high=1))

    with origin_plate, hour_of_week_plate:
        origin_seasonal = numpyro.sample("origin_seasonal", dist.Normal(loc=0, scale=5))

    with destin_plate:
        with (
            numpyro.plate("time", t_max),
            numpyro.handlers.reparam(config={"drift": LocScaleReparam(centered=destin_centered)}),
        ):
            # Sample the drift parameters
            # We have one drift parameter per time series (station) and time point
            drift = numpyro.sample("drift", dist.Normal(loc=0, scale=drift_scale))

        with hour_of_week_plate:
            # Sample the seasonal parameters
            # We have one seasonal parameter per hour of the week and per station
            destin_seasonal = numpyro.sample("destin_seasonal", dist.Normal(loc=0, scale=5))

    # We model a static pairwise station->station affinity, which e.g.
    # can compensate for the fact that people tend not to travel from
    # a station to itself.
    with origin_plate, destin_plate:
        pairwise = numpyro.sample("pairwise", dist.Normal(0, 1))

    # We model the origin and destination scales separately
    # and then add them together to get the final scale.
    with origin_plate:
        origin_scale = numpyro.sample("origin_scale", dist.LogNormal(-5, 5))
    with destin_plate:
        destin_scale = numpyro.sample("destin_scale", dist.LogNormal(-5, 5))
        scale = origin_scale + destin_scale

    # Repeat the seasonal parameters to match the length of the time series
    seasonal = origin_seasonal + destin_seasonal
    seasonal_repeat = periodic_repeat_jax(seasonal, t_max, dim=-1)

    # Define the local level transition function
    def transition_fn(carry, t):
        "Local level transition function"
        previous_level = carry
        current_level = previous_level + drift[..., t]
        return current_level, current_level

    # Compute the latent levels using scan
    _, pred_levels = jax.lax.scan(transition_fn, init=jnp.zeros((n_destin,)), xs=jnp.arange(t_max))

    # We need to transpose the prediction levels to match the shape of the data
    pred_levels = pred_levels.transpose(1, 0)

    # Compute the mean of the model
    mu = pred_levels + seasonal_repeat + pairwise

    # Sample the observations
    with numpyro.handlers.condition(data={"obs": y}):
        numpyro.sample("obs", dist.Normal(loc=mu, scale=scale))


def trips(origins: int, destinations: int, hours: int, t_max: int, seed: int = 0):
    """Logarithms of one plus the trips of each hour, [origin, destination, hour]."""
    rng = np.random.default_rng(seed)
    season = rng.normal(2.0, 0.7, (origins, 1, hours)) + rng.normal(0, 0.5, (destinations, hours))
    mean = np.tile(season, -(-t_max // hours))[..., :t_max]
    mean = mean + rng.normal(0, 0.5, (origins, destinations, 1))
    return np.log1p(rng.poisson(np.exp(mean)))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--origins", type=int, default=40)
    parser.add_argument("--destinations", type=int, default=4)
    parser.add_argument("--hours", type=int, default=12, help="of a season")
    parser.add_argument("--length", type=int, default=72, help="hours of data")
    parser.add_argument("--steps", type=int, default=None)
    args = parser.parse_args(argv)
    y = trips(args.origins, args.destinations, args.hours, args.length)
    table = {"origin": np.arange(args.origins), "y": y, "covariates": np.zeros_like(y)}
    groups = rf.Groups.from_table(table, by="origin", rows=["covariates", "y"])
    made = rf.from_numpyro(partial(model, hours=args.hours), groups)
    print(made)
    family = rf.branch(made, groups, covariance="block")
    posterior = rf.fit(made, groups, family=family, max_steps=args.steps)
    print(posterior)
    found = posterior.predict(groups, draws=200, summary=False)
    inside = np.mean((y > np.quantile(found, 0.05, 0)) & (y < np.quantile(found, 0.95, 0)))
    print(f"{inside:.0%} of the hours lie within the 90% predictive interval")


if __name__ == "__main__":
    main()
