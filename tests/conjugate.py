"""Families on the conjugate regression without Monte Carlo: the Gaussian that a family is."""

import jax
import numpy as np
from scipy.linalg import block_diag

import oracle
from ramify.data.groups import Groups
from ramify.data.resident import whole
from ramify.families.build import Family
from ramify.families.gaussian import Gaussian
from ramify.families.joint import Joint
from ramify.models.model import Model


def assemble(family: Family, model: Model, groups: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (theta, z_1 .. z_N) under a Gaussian family, in float64."""
    if isinstance(family, Joint):
        mean = np.concatenate([np.asarray(q.mean, np.float64) for q in family.parts])
        return mean, block_diag(*[covariance(q) for q in family.parts])
    conditional = family.conditional(model, whole(groups))
    theta = family.theta.mean
    local, slope = conditional(theta), jax.jacfwd(lambda t: conditional(t).mean)(theta)
    mean, slope = np.asarray(theta, np.float64), np.asarray(slope, np.float64)
    offset = np.asarray(local.mean, np.float64) - slope @ mean
    scale = np.asarray(local.scale, np.float64)
    if scale.ndim == 2:
        scale = scale[:, :, None] * np.eye(scale.shape[1])
    z_cov = scale @ scale.transpose(0, 2, 1)
    return oracle.branch_to_joint(
        oracle.Branch(mean, covariance(family.theta), offset, slope, z_cov)
    )


def covariance(q: Gaussian) -> np.ndarray:
    """Covariance of a Gaussian, in float64."""
    scale = np.asarray(q.scale, np.float64)
    return np.diag(scale**2) if q.diagonal else scale @ scale.T


def exact_elbo(family: Family, model: Model, table: oracle.Table, groups: Groups) -> float:
    """The family's ELBO in closed form: log evidence less KL to the posterior."""
    brute = oracle.brute_force(table, len(groups))
    kl = oracle.gaussian_kl(*assemble(family, model, groups), brute.mean, brute.cov)
    return brute.log_evidence - kl
