"""The parser of `formulae`, with its faults corrected in subclasses; the package itself is unchanged.

Import this file inside the functions that need it: `formulae` is optional.
"""

from typing import Any

import numpy as np
from formulae.categorical import CategoricalBox
from formulae.expr import Binary, Unary
from formulae.parser import ParseError, Parser
from formulae.resolver import Resolver, ResolverError
from formulae.scanner import ScanError, Scanner
from formulae.terms import Call, Term
from formulae.terms.call_resolver import CallResolver, CallResolverError, LazyCall, LazyOperator

from ramify.frontends.formula.term_sums import TermSum

UNREADABLE = (ParseError, ScanError, ResolverError, CallResolverError, RecursionError)
_SUMS = {"PLUS": TermSum.plus, "MINUS": TermSum.minus}
_PRODUCTS = {"STAR": TermSum.times, "COLON": TermSum.interactions, "SLASH": TermSum.nested}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}  # how tightly; comparisons less
_MOST = 3  # of powers and signs, whose arguments get brackets in names


def describe(text: str, *, as_before: bool = False) -> Any:
    """A part of a formula as a `formulae` model; raises one of UNREADABLE, or another error.

    `as_before`: powers as the first release read them, -x ** 2 as (-x) ** 2.
    """
    parser = (Parser if as_before else _Parser)(Scanner(text).scan())
    tree = parser.parse()
    if not parser.at_end():  # `formulae` ignores what follows
        raise ParseError(f"{parser.peek().lexeme!r} has no meaning there")
    return _Resolver(tree).resolve().model()


class _Parser(Parser):
    """Reads powers as R and Python do: -x ** 2 is -(x ** 2), and x ** y ** z is x ** (y ** z)."""

    def multiple_interaction(self) -> Any:
        return self.unary()

    def unary(self) -> Any:
        if self.match(["PLUS", "MINUS"]):
            return Unary(self.previous(), self.unary())
        expr = self.call()
        if self.match(["STAR_STAR"]):
            return Binary(expr, self.previous(), self.unary())
        return expr


class _Resolver(Resolver):
    """Makes sums of terms. Refuses numbers as terms, and powers of one term, which would be itself."""

    def visitCallExpr(self, expr: Any) -> Any:
        return TermSum.of([Term(_SilentCall(_CallResolver(expr).resolve()))])

    def visitVariableExpr(self, expr: Any) -> Any:
        _check_no_level(expr)
        return TermSum.of([super().visitVariableExpr(expr)])

    def visitQuotedNameExpr(self, expr: Any) -> Any:
        return TermSum.of([super().visitQuotedNameExpr(expr)])

    def visitLiteralExpr(self, expr: Any) -> Any:
        if type(expr.value) is not int or expr.value not in (0, 1):
            raise ResolverError(
                f"{expr.value!r} is neither a column nor 0 or 1; arithmetic goes into I(), as in I(2 * x)"
            )
        return TermSum({}, bool(expr.value))

    def visitUnaryExpr(self, expr: Any) -> Any:
        found = expr.right.accept(self)
        if expr.operator.kind == "PLUS":
            return found
        if found.terms:
            name = next(iter(found.terms.values())).name
            raise ResolverError(f"-{name} takes a term away that is not there: leave it out")
        return TermSum({}).minus(found)

    def visitBinaryExpr(self, expr: Any) -> Any:
        kind = expr.operator.kind
        if kind in _SUMS:
            return self._sum(expr)
        if kind == "STAR_STAR":
            return self._power(expr)
        if kind not in _PRODUCTS:
            sign = expr.operator.lexeme
            raise ResolverError(
                f"{sign!r} has no meaning between terms: write it in I(), as I(x {sign} 0)"
            )
        return _PRODUCTS[kind](expr.left.accept(self), expr.right.accept(self))

    def _power(self, expr: Any) -> TermSum:
        left, power = expr.left.accept(self), getattr(expr.right, "value", None)
        if type(power) is not int or power < 1:
            raise ResolverError("expected a whole number such as 2 after **")
        if len(left.terms) == 1 and left.intercept is None:
            name = next(iter(left.terms.values())).name
            raise ResolverError(f"for the power of a column write {{{name} ** {power}}}")
        return left.power(power)

    def _sum(self, expr: Any) -> TermSum:
        """A sum of terms in a loop: recursion ends at a few hundred terms."""
        terms = []
        while isinstance(expr, Binary) and expr.operator.kind in _SUMS:
            terms.append((_SUMS[expr.operator.kind], expr.right))
            expr = expr.left
        total = expr.accept(self)
        for combine, term in reversed(terms):
            total = combine(total, term.accept(self))
        return total


def _check_no_level(expr: Any) -> None:
    """Raises at a level in brackets, which `formulae` ignores: it takes the whole column."""
    if expr.level:
        name, level = expr.name.lexeme, expr.level.value
        raise ResolverError(
            f"{name}[{level}] is for a response; for a predictor write I({name} == {level!r})"
        )


class _CallResolver(CallResolver):
    def visitVariableExpr(self, expr: Any) -> Any:
        _check_no_level(expr)
        return super().visitVariableExpr(expr)

    def visitCallExpr(self, expr: Any) -> Any:
        if not hasattr(expr.callee, "name"):
            raise CallResolverError("something that is no function is called")
        call = super().visitCallExpr(expr)
        found = _ComparableCall(call.callee, call.args, call.kwargs)
        if call.callee == "binary":
            found.stateful_transform = _Binary()
        return found

    def visitBinaryExpr(self, expr: Any) -> Any:
        found = super().visitBinaryExpr(expr)
        return _Operator(found.op, *found.args)

    def visitUnaryExpr(self, expr: Any) -> Any:
        found = super().visitUnaryExpr(expr)
        return _Operator(found.op, *found.args)


class _Operator(LazyOperator):
    """An operator that treats booleans as numbers; products and powers of integers are floats.

    NumPy's sum of two booleans is a boolean, and its integers wrap around.
    """

    def eval(self, data_mask: Any, env: Any) -> Any:
        kinds = "biu" if self.symbol in ("*", "**") else "b"
        is_one = lambda x: getattr(getattr(x, "dtype", None), "kind", "O") in kinds
        found = [arg.eval(data_mask, env) for arg in self.args]
        return self.op(*(x.astype(float) if is_one(x) else x for x in found))

    def __str__(self) -> str:
        """The expression with necessary brackets, so that different expressions have different names."""
        tight = self.binds == _MOST
        inner = lambda arg, least: f"({arg})" if getattr(arg, "binds", 9) < least else str(arg)
        if len(self.args) == 1:
            return f"{self.symbol}{inner(self.args[0], _MOST + 1)}"
        left, right = inner(self.args[0], self.binds + tight), inner(self.args[1], self.binds + 1)
        return f"{left} {self.symbol} {right}"

    @property
    def binds(self) -> int:
        """How tightly it binds its arguments."""
        tight = len(self.args) == 1 or self.symbol == "**"
        return _MOST if tight else _BINDS.get(self.symbol, 0)


class _Binary:
    """binary(x, success): 1 where x is `success`, by default the smallest value of the fit.

    The one in `formulae` takes the smallest of the current rows, and refuses rows without `success`.
    """

    def __init__(self):
        self.first: Any = None

    def __call__(self, x: Any, success: Any = None) -> np.ndarray:
        values = np.asarray(x)
        if success is None:
            self.first = np.unique(values)[0] if self.first is None else self.first
            success = self.first
        return np.where(values == success, 1, 0)


class _ComparableCall(LazyCall):
    """A call that can be compared with anything, as in scale(x) == scale(f(x)); a LazyCall can't."""

    __hash__ = LazyCall.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyCall) and super().__eq__(other)


class _SilentCall(Call):
    """A call that does not print before it raises."""

    def set_data(self, spans_intercept: Any = False) -> None:
        data = self._intermediate_data
        if self.kind == "categoric":
            box = isinstance(data, CategoricalBox)
            (self.eval_categorical_box if box else self.eval_categoric)(data, spans_intercept)
        else:
            getattr(self, f"eval_{self.kind}")(data)
