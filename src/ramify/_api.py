"""The public names, and where each is defined: what `import ramify` offers."""

from ramify.data.groups import Groups as Groups
from ramify.diagnostics.diagnosis import Diagnosis as Diagnosis
from ramify.diagnostics.diagnosis import diagnose as diagnose
from ramify.families.build import amortized as amortized
from ramify.families.build import branch as branch
from ramify.families.build import joint as joint
from ramify.families.build import solved as solved
from ramify.families.joint import joint_to_branch as joint_to_branch
from ramify.fitting.fit import fit as fit
from ramify.fitting.loading import load as load
from ramify.frontends.formula.build import from_formula as from_formula
from ramify.frontends.numpyro.build import from_numpyro as from_numpyro
from ramify.inference.failures import NonFiniteError as NonFiniteError
from ramify.inference.schedules import paper_schedule as paper_schedule
from ramify.models.model import Model as Model
from ramify.models.parameters import cholesky as cholesky
from ramify.models.parameters import constrained as constrained
from ramify.models.parameters import correlation as correlation
from ramify.models.parameters import correlation_cholesky as correlation_cholesky
from ramify.models.parameters import ordered as ordered
from ramify.models.parameters import positive as positive
from ramify.models.parameters import real as real
from ramify.models.parameters import simplex as simplex
from ramify.models.parameters import unit as unit
from ramify.posterior.posterior import Posterior as Posterior
from ramify.report.page import write_report as write_report
