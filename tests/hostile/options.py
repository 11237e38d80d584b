"""Options and arguments with values that they can't have."""

import numpy as np

import ramify as rf

from .case import Case
from .data import build, fitted, table

AT = {"g": ["g00"], "x": [0.0]}


def cases():
    pair = build()
    fit = lambda **own: rf.fit(*pair, progress=False, **own)
    for name in ("max_steps", "local_draws", "draws", "minibatch"):
        for value in (-1, 0, 1.5, float("nan"), "3", True, [1]):
            run = lambda name=name, value=value: fit(**{name: value})
            yield Case(f"fit({name}={value!r})", run, [name, "whole number"])
    for value in (-1, float("nan"), "3", [1]):
        yield Case(f"fit(max_seconds={value!r})", lambda v=value: fit(max_seconds=v), ["max_seconds", "seconds"])  # fmt: skip
    for value in (-1, 1.5, 2**32, "3", None, True):
        yield Case(f"fit(seed={value!r})", lambda v=value: fit(seed=v), ["seed", "whole number"])
        predict = lambda v=value: fitted().predict(AT, seed=v)
        yield Case(f"predict(seed={value!r})", predict, ["seed", "whole number"])
    for value in ("solved", "amortized", "branch", rf.solved, rf.joint, 3):
        says = ["family", "rf."]
        yield Case(f"fit(family={value!r:.20})", lambda v=value: fit(family=v), says)
    for method in ("sample", "sample_theta", "summary", "group_effects", "elbo"):
        for value in (0, -3, 1.5, "a"):
            run = lambda m=method, v=value: getattr(fitted(), m)(draws=v)
            yield Case(f"{method}(draws={value!r})", run, ["draws", "whole number"])
    for value in (0, -3, 1.5, "a"):
        says = ["draws", "whole number"]
        yield Case(f"predict(draws={value!r})", lambda v=value: fitted().predict(AT, draws=v), says)
        says = ["local_draws", "whole number"]
        run = lambda v=value: fitted().predict(AT, local_draws=v)
        yield Case(f"predict(local_draws={value!r})", run, says)
    for value in ("median", "", None, 3):
        run = lambda v=value: fitted().predict(AT, kind=v)
        yield Case(f"predict(kind={value!r})", run, ["kind", "response"])
    for value in ((-0.1,), (2,), (float("nan"),)):
        run = lambda v=value: fitted().predict(AT, quantiles=v)
        yield Case(f"predict(quantiles={value!r})", run, ["quantiles", "between 0 and 1"])
    model, groups = pair
    for name in ("fit", "solved", "branch", "joint", "amortized"):
        call = getattr(rf, name)
        yield Case(f"rf.{name}(groups, model)", lambda c=call: c(groups, model), ["swapped", f"rf.{name}"])  # fmt: skip
        yield Case(
            f"rf.{name}(model, dict)", lambda c=call: c(model, table()), ["dict", "rf.Groups"]
        )
        says = ["formula", "table"] if name == "fit" else ["str", "rf.Model"]
        yield Case(f"rf.{name}(text, groups)", lambda c=call: c("y ~ x", groups), says)
        yield Case(
            f"rf.{name}(model, None)", lambda c=call: c(model, None), ["NoneType", "rf.Groups"]
        )
    for value in ("full", None, 3):
        run = lambda v=value: rf.branch(model, groups, covariance=v)
        yield Case(f"branch(covariance={value!r})", run, ["covariance", "dense"])
    plain = lambda: fitted().predict(AT, draws=20, seed=3)["mean"]
    right = lambda out: np.array_equal(out["mean"], plain())
    numpy_ints = lambda: fitted().predict(AT, draws=np.int64(20), seed=np.uint32(3))
    yield Case("NumPy's integers", numpy_ints, right=right)
