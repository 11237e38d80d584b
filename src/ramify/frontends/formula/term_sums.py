"""Sums of terms, and their products, as R reads them: `a * b` is `a + b + a:b`.

An intercept in brackets is one of the whole sum, and has no part in products: `(1 + x) * kind` is
`1 + x + kind + x:kind`. Two terms of the same columns are one term, in whatever order.

Import this file inside the functions that need it: `formulae` is optional.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Any, NamedTuple

from formulae.resolver import ResolverError
from formulae.terms import Call, Intercept, Term
from formulae.terms.terms import Model


class TermSum(NamedTuple):
    """Terms that are added, and whether the sum has an intercept; None if it doesn't say."""

    terms: dict[Any, Term]  # by what they are made of
    intercept: bool | None = None

    @classmethod
    def of(cls, terms: Iterable[Term], intercept: bool | None = None) -> "TermSum":
        """The sum of terms, each of them once."""
        found: dict[Any, Term] = {}
        for term in terms:
            found.setdefault(frozenset((type(c), c.name) for c in term.components), term)
        return cls(found, intercept)

    def model(self) -> Model:
        """The sum as `formulae` knows it."""
        return Model(*[Intercept()] * bool(self.intercept), *self.terms.values())

    def plus(self, other: "TermSum") -> "TermSum":
        """`a + b`; the last of several intercepts counts."""
        new = {key: term for key, term in other.terms.items() if key not in self.terms}
        intercept = self.intercept if other.intercept is None else other.intercept
        return TermSum({**self.terms, **new}, intercept)

    def minus(self, other: "TermSum") -> "TermSum":
        """`a - b`: terms of a that are not in b; `- 1` leaves the intercept out."""
        left = {key: term for key, term in self.terms.items() if key not in other.terms}
        return TermSum(left, self.intercept if other.intercept is None else not other.intercept)

    def times(self, other: "TermSum") -> "TermSum":
        """`a * b`: both, and each term of a with each of b."""
        _check_factors(self, other, "*")
        return self.plus(other).plus(self._with_each(other))

    def interactions(self, other: "TermSum") -> "TermSum":
        """`a:b`: each term of a with each of b."""
        _check_factors(self, other, ":")
        if self.intercept is not None or other.intercept is not None:
            raise ResolverError(
                f"{_written(self)}:{_written(other)} has the intercept in a product, which may mean two "
                "things: write its terms out, as 1 + x:kind or kind + x:kind"
            )
        return self._with_each(other)

    def nested(self, other: "TermSum") -> "TermSum":
        """`a / b`: a, and all of a with each term of b."""
        _check_factors(self, other, "/")
        every = TermSum.of([_joined(self.terms.values())])
        return TermSum(self.terms, self.plus(other).intercept).plus(every._with_each(other))

    def power(self, order: int) -> "TermSum":
        """`(a + b) ** n`: products of up to n different terms."""
        orders, own = range(1, order + 1), self.terms.values()
        products = (_joined(some) for i in orders for some in combinations(own, i))
        return TermSum.of(products, self.intercept)

    def _with_each(self, other: "TermSum") -> "TermSum":
        pairs = [(a, b) for a in self.terms.values() for b in other.terms.values()]
        return TermSum.of(_joined(pair) for pair in pairs)


def _joined(terms: Iterable[Term]) -> Term:
    """The interaction of terms."""
    found = Term(*(component for term in terms for component in term.components))
    is_offset = lambda c: isinstance(c, Call) and c.call.callee == "offset"
    if len(found.components) > 1 and any(map(is_offset, found.components)):
        raise ResolverError(f"{found.name} has an offset in a product: add offsets with +")
    return found


def _check_factors(left: TermSum, right: TermSum, sign: str) -> None:
    """Raises if nothing but an intercept is multiplied."""
    for own, other in ((left, right), (right, left)):
        if not own.terms:
            raise ResolverError(
                f"1 and 0 stand for the intercept, which has no product {_written(left)} {sign} "
                f"{_written(right)}: write {_written(other)} alone; arithmetic goes into I()"
            )


def _written(own: TermSum) -> str:
    """The sum as a formula says it."""
    first = [] if own.intercept is None else [str(int(own.intercept))]
    names = [*first, *(term.name for term in own.terms.values())]
    return names[0] if len(names) == 1 else f"({' + '.join(names)})"
