"""Batting averages early in the season: NumPyro's baseball example.

Both partially pooled models are those of the example, unchanged. They need no group numbers, since
each player has one row: 45 times at bat in 1970, the data of Efron and Morris (1975).

    python examples/numpyro_baseball.py
"""

import argparse

import numpy as np
import numpyro
import numpyro.distributions as dist

import ramify as rf

HITS = {
    "Clemente": 18,
    "F. Robinson": 17,
    "F. Howard": 16,
    "Johnstone": 15,
    "Berry": 14,
    "Spencer": 14,
    "Kessinger": 13,
    "L. Alvarado": 12,
    "Santo": 11,
    "Swoboda": 11,
    "Unser": 10,
    "Williams": 10,
    "Scott": 10,
    "Petrocelli": 10,
    "E. Rodriguez": 10,
    "Campaneris": 9,
    "Munson": 8,
    "Alvis": 7,
}


def partially_pooled(at_bats, hits=None):
    r"""
    Number of hits has a Binomial distribution with independent
    probability of success, $\phi_i$. Each $\phi_i$ follows a Beta
    distribution with concentration parameters $c_1$ and $c_2$, where
    $c_1 = m * kappa$, $c_2 = (1 - m) * kappa$, $m ~ Uniform(0, 1)$,
    and $kappa ~ Pareto(1, 1.5)$.

    :param (jnp.ndarray) at_bats: Number of at bats for each player.
    :param (jnp.ndarray) hits: Number of hits for the given at bats.
    :return: Number of hits predicted by the model.
    """
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
    num_players = at_bats.shape[0]
    with numpyro.plate("num_players", num_players):
        phi_prior = dist.Beta(m * kappa, (1 - m) * kappa)
        phi = numpyro.sample("phi", phi_prior)
        return numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def partially_pooled_with_logit(at_bats, hits=None):
    r"""
    Number of hits has a Binomial distribution with a logit link function.
    The logits $\alpha$ for each player is normally distributed with the
    mean and scale parameters sharing a common prior.

    :param (jnp.ndarray) at_bats: Number of at bats for each player.
    :param (jnp.ndarray) hits: Number of hits for the given at bats.
    :return: Number of hits predicted by the model.
    """
    loc = numpyro.sample("loc", dist.Normal(-1, 1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1))
    num_players = at_bats.shape[0]
    with numpyro.plate("num_players", num_players):
        alpha = numpyro.sample("alpha", dist.Normal(loc, scale))
        return numpyro.sample("obs", dist.Binomial(at_bats, logits=alpha), obs=hits)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args(argv)
    players = np.array(list(HITS))
    table = {
        "player": players,
        "at_bats": np.full(len(players), 45),
        "hits": np.array(list(HITS.values())),
    }
    groups = rf.Groups.from_table(table, by="player", rows=["at_bats", "hits"])
    for model in (partially_pooled, partially_pooled_with_logit):
        posterior = rf.fit(rf.from_numpyro(model, groups), groups)
        print(f"\n{model.__name__}\n{posterior.summary()}")
        season = {"player": players, "at_bats": np.full(len(players), 400)}
        predicted = posterior.predict(season, draws=args.draws)
        for player, mean, sd in zip(players, predicted["mean"], predicted["sd"], strict=True):
            print(f"{player:>14}: {HITS[player]:2} of 45, then {mean:3.0f} ± {sd:2.0f} of 400")


if __name__ == "__main__":
    main()
