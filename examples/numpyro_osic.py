"""Lung capacity of patients over time: NumPyro's tutorial on hierarchical regression.

Both models are copied from "Bayesian Hierarchical Linear Regression" in the NumPyro documentation,
with one change: the number of smoking statuses is an argument, and is not counted in the data. The
data are simulated to resemble the OSIC pulmonary fibrosis data.

    python examples/numpyro_osic.py
"""

import argparse

import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import ramify as rf

STATUSES = ["Currently smokes", "Ex-smoker", "Never smoked"]


def model(patient_code, Weeks, FVC_obs=None):
    μ_α = numpyro.sample("μ_α", dist.Normal(0.0, 500.0))
    σ_α = numpyro.sample("σ_α", dist.HalfNormal(100.0))
    μ_β = numpyro.sample("μ_β", dist.Normal(0.0, 3.0))
    σ_β = numpyro.sample("σ_β", dist.HalfNormal(3.0))

    n_patients = len(np.unique(patient_code))

    with numpyro.plate("plate_i", n_patients):
        α = numpyro.sample("α", dist.Normal(μ_α, σ_α))
        β = numpyro.sample("β", dist.Normal(μ_β, σ_β))

    σ = numpyro.sample("σ", dist.HalfNormal(100.0))
    FVC_est = α[patient_code] + β[patient_code] * Weeks

    with numpyro.plate("data", len(patient_code)):
        numpyro.sample("obs", dist.Normal(FVC_est, σ), obs=FVC_obs)


def model_smoking_hierarchy(
    patient_code, Weeks, map_patient_to_smoking_status, FVC_obs=None, n_smoking_statuses=3
):
    μ_α_global = numpyro.sample("μ_α_global", dist.Normal(0.0, 500.0))
    σ_α_global = numpyro.sample("σ_α_global", dist.HalfNormal(100.0))
    μ_β_global = numpyro.sample("μ_β_global", dist.Normal(0.0, 3.0))
    σ_β_global = numpyro.sample("σ_β_global", dist.HalfNormal(3.0))

    n_patients = len(np.unique(patient_code))

    with numpyro.plate("plate_smoking_status", n_smoking_statuses):
        μ_α_smoking_status = numpyro.sample(
            "μ_α_smoking_status", dist.Normal(μ_α_global, σ_α_global)
        )
        μ_β_smoking_status = numpyro.sample(
            "μ_β_smoking_status", dist.Normal(μ_β_global, σ_β_global)
        )

    with numpyro.plate("plate_i", n_patients):
        α = numpyro.sample(
            "α",
            dist.Normal(μ_α_smoking_status[map_patient_to_smoking_status], σ_α_global),
        )
        β = numpyro.sample(
            "β",
            dist.Normal(μ_β_smoking_status[map_patient_to_smoking_status], σ_β_global),
        )

    σ = numpyro.sample("σ", dist.HalfNormal(100.0))
    FVC_est = α[patient_code] + β[patient_code] * Weeks

    with numpyro.plate("data", len(patient_code)):
        numpyro.sample("obs", dist.Normal(FVC_est, σ), obs=FVC_obs)


reparam_config = {
    "μ_α_smoking_status": LocScaleReparam(0),
    "μ_β_smoking_status": LocScaleReparam(0),
    "α": LocScaleReparam(0),
    "β": LocScaleReparam(0),
}
reparam_model_smoking_hierarchy = reparam(model_smoking_hierarchy, config=reparam_config)


def patients(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Some visits of each patient: week, lung capacity in ml, and whether the patient smokes."""
    rng = np.random.default_rng(seed)
    status = rng.choice(3, count, p=[0.1, 0.6, 0.3])
    α = rng.normal(np.array([700.0, 500.0, 600.0])[status], 120.0)
    β = rng.normal(np.array([-4.0, -3.0, -2.0])[status], 1.5)
    who = np.repeat(np.arange(count), rng.integers(6, 11, count))
    weeks = rng.integers(-5, 60, who.size).astype(float)
    fvc = α[who] + β[who] * weeks + rng.normal(0.0, 60.0, who.size)
    return {
        "patient_code": who,
        "Weeks": weeks,
        "FVC_obs": fvc,
        "map_patient_to_smoking_status": status[who],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--patients", type=int, default=176)
    args = parser.parse_args(argv)
    table = patients(args.patients)
    groups = rf.Groups.from_table(
        table,
        by="patient_code",
        rows=["Weeks", "FVC_obs"],
        group=["map_patient_to_smoking_status"],
    )
    posterior = rf.fit(rf.from_numpyro(model, groups), groups)
    print(posterior)
    print(posterior.summary())

    smoking = rf.fit(rf.from_numpyro(reparam_model_smoking_hierarchy, groups), groups)
    slopes = smoking.sample(1000)["μ_β_smoking_status"]
    for status, draws in zip(STATUSES, slopes.T, strict=True):
        print(f"{status:17} loses {-draws.mean():.1f} ± {draws.std():.1f} ml a week")

    at = {"patient_code": [0, 0, 10**6], "Weeks": [60.0, 130.0, 60.0]}
    at["map_patient_to_smoking_status"] = [*table["map_patient_to_smoking_status"][:1].repeat(2), 2]
    print("two weeks of a known patient, one of a new one:")
    print(posterior.predict(at, draws=500)["mean"].round())


if __name__ == "__main__":
    main()
