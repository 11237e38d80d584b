"""Admissions to Berkeley's departments: NumPyro's UCBadmit example.

The generalized linear mixed model is that of the example, unchanged. It counts the departments from
the group numbers, and its latent sites have shapes instead of plates. The data are the twelve numbers
of Bickel, Hammel and O'Connell (1975).

    python examples/numpyro_ucbadmit.py
"""

import argparse

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit

import ramify as rf

ADMISSIONS = {
    "dept": np.repeat(list("ABCDEF"), 2),
    "male": np.tile([1, 0], 6),
    "applications": np.array([825, 108, 560, 25, 325, 593, 417, 375, 191, 393, 373, 341]),
    "admit": np.array([512, 89, 353, 17, 120, 202, 138, 131, 53, 94, 22, 24]),
}


def glmm(dept, male, applications, admit=None):
    v_mu = numpyro.sample("v_mu", dist.Normal(0, jnp.array([4.0, 1.0])))

    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
    L_Rho = numpyro.sample("L_Rho", dist.LKJCholesky(2, concentration=2))
    scale_tril = sigma[..., jnp.newaxis] * L_Rho
    # non-centered parameterization
    num_dept = len(np.unique(dept))
    z = numpyro.sample("z", dist.Normal(jnp.zeros((num_dept, 2)), 1))
    v = jnp.dot(scale_tril, z.T).T

    logits = v_mu[0] + v[dept, 0] + (v_mu[1] + v[dept, 1]) * male
    if admit is None:
        # we use a Delta site to record probs for predictive distribution
        probs = expit(logits)
        numpyro.sample("probs", dist.Delta(probs), obs=probs)
    numpyro.sample("admit", dist.Binomial(applications, logits=logits), obs=admit)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args(argv)
    groups = rf.Groups.from_table(ADMISSIONS, by="dept", rows=["male", "applications", "admit"])
    model = rf.from_numpyro(glmm, groups)
    # Non-centred by hand: the likelihood depends on theta, and the posterior of z changes with it. A
    # learned family fits that better than a solved one. Better still, centre the model
    # (docs/translating.md).
    posterior = rf.fit(model, groups, family=rf.branch(model, groups))
    print(posterior.summary())
    found = posterior.predict(ADMISSIONS, draws=args.draws)
    for i, dept in enumerate(ADMISSIONS["dept"]):
        who = "men" if ADMISSIONS["male"][i] else "women"
        share = ADMISSIONS["admit"][i] / ADMISSIONS["applications"][i]
        predicted = found["mean"][i] / ADMISSIONS["applications"][i]
        print(f"{dept} {who:5}: {share:.2f} admitted, {predicted:.2f} by the model")


if __name__ == "__main__":
    main()
