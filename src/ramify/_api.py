"""The public names, and where each is defined: what `import ramify` offers."""

from ramify._blame import NonFiniteError as NonFiniteError
from ramify._data import Groups as Groups
from ramify._diagnostics import Diagnosis as Diagnosis
from ramify._diagnostics import diagnose as diagnose
from ramify._family import amortized as amortized
from ramify._family import branch as branch
from ramify._family import joint as joint
from ramify._family import joint_to_branch as joint_to_branch
from ramify._family import solved as solved
from ramify._fit import fit as fit
from ramify._model import Model as Model
from ramify._model import cholesky as cholesky
from ramify._model import constrained as constrained
from ramify._model import correlation as correlation
from ramify._model import correlation_cholesky as correlation_cholesky
from ramify._model import ordered as ordered
from ramify._model import positive as positive
from ramify._model import real as real
from ramify._model import simplex as simplex
from ramify._model import unit as unit
from ramify._posterior import Posterior as Posterior
from ramify._saving import load as load
from ramify._schedule import paper_schedule as paper_schedule
from ramify.frontends.formula import from_formula as from_formula
from ramify.frontends.numpyro import from_numpyro as from_numpyro
from ramify.report import write_report as write_report
