"""Saddles, mirror images and second modes of effects, in models of densities with several factors."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import ramify as rf
from levels_models import engine, half_normals
from ramify.levels.marginal import Marginal
from ramify.levels.other_modes import other_modes
from ramify.posterior.trust import findings, verdict_of

NORMAL = dist.Normal(0.0, 1.0)


def tastes(quality=rf.real, prior=NORMAL, seen=lambda z: z):
    """A product of an effect of users and one of items, with a saddle at zero; `seen` is of a user's."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(30, size=400), rng.integers(6, size=400)
    mean = seen(rng.normal(size=30)[user]) * np.linspace(0.5, 1.5, 6)[item]
    rows = {"user": user, "item": item, "y": mean + 0.5 * rng.normal(size=400)}
    groups = rf.Groups.from_table(rows, by=["user", "item"], rows=["y"])
    model = rf.Model(
        theta={"sigma": rf.positive()},
        z={"user": {"taste": rf.real()}, "item": {"quality": quality()}},
        log_prior=half_normals,
        log_local={
            "user": lambda t, z, group: dist.Normal(0, 1).log_prob(z["taste"]),
            "item": lambda t, z, group: prior.log_prob(z["quality"]),
        },
        log_lik=lambda t, z, row: dist.Normal(
            seen(z["user"]["taste"]) * z["item"]["quality"], t["sigma"]
        ).log_prob(row["y"]),
    )
    return engine(model, groups)


def test_a_product_is_not_left_at_its_saddle_and_its_mirror_image_is_seen():
    """The search for effects began at zero, where their slope is zero: there it ended."""
    model, design, adapter = tastes()
    G = Marginal(model, design)
    found = G.optimum(np.log([0.5]))
    assert np.abs(found.effects.u).min() > 0.2
    notes = other_modes(G, found, adapter.factors)
    assert notes["other_mode"] == ["quality of item", "taste of user"]
    assert abs(notes["other_mode_nats"]) < 1e-3 and notes["second_modes"] == 0
    assert verdict_of(findings(notes, 30)) == "check"
    assert verdict_of(findings(notes | {"other_mode_nats": 2.0}, 30)) == "do not trust"


def test_no_other_mode_is_seen_where_there_is_none():
    model, design, adapter = tastes(rf.positive, dist.LogNormal(0, 0.5))
    G = Marginal(model, design)
    notes = other_modes(G, G.optimum(np.log([0.5])), adapter.factors)
    assert "other_mode" not in notes and notes["second_modes"] == 0


def test_groups_with_two_modes_are_seen_beside_other_factors():
    """Of a user's effect the square is seen."""
    model, design, adapter = tastes(rf.positive, dist.LogNormal(0, 0.5), jnp.square)
    G = Marginal(model, design)
    notes = other_modes(G, G.optimum(np.log([0.5])), adapter.factors)
    assert notes["second_modes"] > 15 and notes["z_names"] == "taste"
    assert verdict_of(findings(notes, 30)) == "do not trust"
