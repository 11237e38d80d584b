"""Custom models whose functions return something else than one log density."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import ramify as rf

from .case import Case
from .data import table

PRIOR = lambda t: dist.Normal(0, 1).log_prob(t["mu"])
LOCAL = lambda t, z, group: dist.Normal(t["mu"], 1).log_prob(z["b"])
LIK = lambda t, z, row: dist.Normal(z["b"], 1).log_prob(row["y"])
RETURNS = {
    "a distribution": (lambda v: dist.Normal(0.0, 1.0), ["distribution", "log_prob"]),
    "an integer": (lambda v: 1, ["int", "log density"]),
    "a whole array": (lambda v: jnp.asarray(1), ["int", "log density"]),
    "a truth": (lambda v: True, ["bool", "log density"]),
    "complex": (lambda v: 1j + 0 * v, ["complex", "log density"]),
    "None": (lambda v: None, ["one number", "NoneType"]),
    "a vector": (lambda v: v * jnp.ones(3), ["one number", "[3]"]),
    "a matrix": (lambda v: v * jnp.ones((2, 2)), ["one number", "[2, 2]"]),
    "a tuple": (lambda v: (v, v), ["one number", "tuple"]),
    "a dict": (lambda v: {"a": v}, ["one number", "dict"]),
    "a list": (lambda v: [v], ["one number", "list"]),
    "an if": (lambda v: v if v > 0 else -v, ["jnp.where"]),
    "NumPy's exp": (lambda v: np.exp(np.asarray(v)), ["jax.numpy"]),
    "float()": (lambda v: float(v), ["jnp.where"]),
}


def make(**own):
    """A model with some parts replaced."""
    parts = {
        "theta": {"mu": rf.real()}, "z": {"b": rf.real()},
        "log_prior": PRIOR, "log_local": LOCAL, "log_lik": LIK,
    }  # fmt: skip
    return rf.Model(**{**parts, **own})


def fit(**own):
    groups = rf.Groups.from_table(table(), by="g", rows=["y"])
    return rf.fit(make(**own), groups, progress=False)


def cases():
    for what, (value, says) in RETURNS.items():
        prior = lambda t, value=value: value(t["mu"])
        local = lambda t, z, group, value=value: value(z["b"])
        lik = lambda t, z, row, value=value: value(z["b"] + row["y"])
        for name, function in (("log_prior", prior), ("log_local", local), ("log_lik", lik)):
            run = lambda name=name, function=function: fit(**{name: function})
            yield Case(f"{name} returns {what}", run, [name, *says])
    for name, function in {
        "log_prior": lambda t: t["nu"], "log_local": lambda t, z, group: z["c"],
        "log_lik": lambda t, z, row: row["q"],
    }.items():  # fmt: skip
        run = lambda name=name, function=function: fit(**{name: function})
        yield Case(f"{name} asks for what is not there", run, [name, "neither a parameter"])
    for where in ("theta", "z"):
        yield Case(f"no {where}", lambda w=where: make(**{w: {}}), [where, "at least one"])
        yield Case(f"{where} of numbers", lambda w=where: make(**{w: {"a": 3}}), [where, "rf.real"])
    yield Case("one name twice", lambda: make(z={"mu": rf.real()}), ["mu", "both"])
    nan = lambda t, z, row: jnp.log(-jnp.abs(row["y"])) + z["b"]
    yield Case("a likelihood that is NaN", lambda: fit(log_lik=nan), ["log_lik", "group"])
