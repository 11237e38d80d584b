"""Parsing a formula into its response, its common part and its grouping terms.

The grouping terms are taken out here. `formulae`, which codes the predictors, would make a dense array
of rows x groups of a grouping column.
"""

import re
from decimal import Decimal
from typing import NamedTuple

# Longest first, so that "||" is one operator. A name may have dots in it: np.log is one.
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[^\W\d]\w*(?:\.\w+)*|`[^`]*`)"
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<string>'[^']*'|\"[^\"]*\")|(?P<operator>\|\||\*\*|//|[=!<>]=|[-+*/:|~(),=<>%{}\[\]]))"
)
_HINTS = {"^": ": write ** for a power, as in {x**2}", ".": ": name every column"}
_NOT_IN_RESPONSES = (":", "%", "//")
_DEEPEST = 50  # brackets in brackets
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
CONSTANTS = ("True", "False", "None")
ADDITIONS = ("trials", "weights", "cens")
PROPORTIONS = ("p", "prop", "proportion")


class FormulaError(ValueError):
    """A formula that can't be parsed; the message shows the place."""


class Token(NamedTuple):
    """A token of the text and its position."""

    text: str
    kind: str
    at: int


class GroupingTerm(NamedTuple):
    """A grouping term such as (1 + x | user); a/b is two of them, by a and by a:b."""

    group: str  # the effects, left of the bar
    columns: tuple[str, ...]  # the grouping columns: several of an interaction such as dept:service
    independent: bool  # whether the bar is double, so that effects have no correlations

    @property
    def by(self) -> str:
        """The name of the factor."""
        return ":".join(self.columns)


class FormulaText(NamedTuple):
    """A formula in parts."""

    text: str  # the whole, as it was written
    response: str  # left of the tilde, without what follows a bar
    trials: str | None  # the column (or number) of binomial trials, if any
    weights: str | None  # the column of weights, if any
    cens: str | None  # the column that says which responses are right censored, if any
    common: str  # the common part: right of the tilde, without the grouping terms
    terms: tuple[GroupingTerm, ...]

    @property
    def several(self) -> bool:
        """Whether there is more than one term with one column."""
        return len(self.terms) > 1 or any(len(term.columns) > 1 for term in self.terms)

    @property
    def group(self) -> str:
        """The effects of the only grouping term."""
        return self.terms[0].group

    @property
    def by(self) -> str:
        """The grouping column of the only term."""
        return self.terms[0].by

    @property
    def independent(self) -> bool:
        """Whether the effects of the only term have no correlations."""
        return self.terms[0].independent

    @property
    def extra(self) -> list[str]:
        """The columns of trials, weights and censoring."""
        return [c for c in (self.trials, self.weights, self.cens) if c and not c.isdigit()]


def split(text: str) -> list[str]:
    """The formulas in a text: that of the mean, and those of other parameters after semicolons.

    Example:
        >>> split("y ~ x + (1 | g); sigma ~ x")
        ['y ~ x + (1 | g)', 'sigma ~ x']
    """
    if not isinstance(text, str):
        hint = "; several formulas go into one text: 'y ~ x + (1 | g); sigma ~ x'"
        raise TypeError(
            f"formula is a {type(text).__name__}; expected text such as 'y ~ 1 + (1 | g)'"
            f"{hint if isinstance(text, list | tuple | dict) else ''}."
        )
    # A semicolon in quotes or backquotes is part of a name or a level.
    parts = re.findall(r"(?:`[^`]*`|'[^']*'|\"[^\"]*\"|[^;])+|(?<=;)(?=;|$)", text)
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise FormulaError(f"formula: there is nothing beside a semicolon.\n  {text}")
    return [part.strip() for part in parts] if len(parts) > 1 else [text]


def parse_parameter(text: str, by: str) -> FormulaText:
    """The parts of a formula of a parameter, such as `sigma ~ x + (1 | g)`; `by` is the mean's group.

    Without a grouping term, its effects are common to all groups.
    """
    tokens = _scan(text)
    if not any(token.text in ("|", "||") for token in tokens):
        marked = f"{text} + (1 | g)"  # so that the rest is checked like any formula
        parts = parse(marked)
        return parts._replace(text=text, terms=(GroupingTerm("", (by,), False),))
    parts = parse(text)
    if parts.several:
        raise error(text, 0, "the formula of a parameter has one grouping term with one column")
    if (parts.trials, parts.weights, parts.cens) != (None, None, None):
        raise error(text, 0, "trials, weights and cens belong to the formula of the response")
    if parts.by != by:
        what = f"expected the grouping column of the response's formula, {by!r}"
        raise error(text, parts.by, what)
    return parts


def without_effects(parts: FormulaText) -> FormulaText:
    """The formula of a linear predictor that is zero: of a categorical response's first level."""
    return parts._replace(common="", terms=(GroupingTerm("", (parts.by,), False),))


def parse(text: str) -> FormulaText:
    """Splits a formula into its parts.

    Example:
        >>> parts = parse("y | trials(n) ~ 1 + x + (1 + x || user)")
        >>> parts.response, parts.trials, parts.common, parts.group, parts.by, parts.independent
        ('y', 'n', '1 + x', '1 + x', 'user', True)
    """
    tokens = _scan(text)
    for token in tokens:
        if token.kind == "number" and "e" in token.text.lower():  # which `formulae` can't read
            raise error(text, token.at, f"write {Decimal(token.text):f} in place of {token.text}")
    _check_brackets(text, tokens)
    _check_operands(text, tokens)
    tildes = [i for i, token in enumerate(tokens) if token.text == "~"]
    if len(tildes) != 1:
        what = f"expected one ~ between response and predictors, got {len(tildes)}"
        raise error(text, tokens[tildes[1]].at if tildes else len(text), what)
    left, (tilde, *right) = tokens[: tildes[0]], tokens[tildes[0] :]
    return FormulaText(text, *_left(text, left, tilde), *_right(text, right, tilde))


def error(text: str, at: int | str, what: str) -> FormulaError:
    """The error with the formula and a caret under the place, or under a name in the formula."""
    if isinstance(at, str):
        at = next((t.at for t in _scan(text) if unquoted(t.text) == at), 0)
    line = " ".join(text.splitlines()) if "\n" in text else text
    end = "" if what.endswith(("?", ".")) else "."
    return FormulaError(f"formula: {what}{end}\n  {line}\n  {' ' * at}^")


def unquoted(name: str) -> str:
    """A name without its backquotes."""
    return name[1:-1] if name.startswith("`") else name


def formula_columns(text: str) -> list[str]:
    """The names of columns in a formula, in order of appearance.

    Functions, their keyword arguments, constants, strings and levels in brackets are not columns.

    Example:
        >>> formula_columns("y | trials(n) ~ 1 + bs(age, df=4) + C(kind, 'a') + (1 + x | shop)")
        ['y', 'n', 'age', 'kind', 'x', 'shop']
        >>> formula_columns("y ~ x + (1 | g); sigma ~ age")
        ['y', 'x', 'g', 'age']
    """
    first, *others = split(text)
    tokens, names, depth = _scan(first), {}, 0
    for other in others:  # whose left side is no column
        tokens += _scan("~ " + other.partition("~")[2])
    for token, after in zip(tokens, [*(t.text for t in tokens[1:]), ""], strict=True):
        depth += (token.text == "[") - (token.text == "]")
        called = after in ("(", "=") and not token.text.startswith("`")
        if token.kind == "name" and not (depth or called or token.text in CONSTANTS):
            names[unquoted(token.text)] = None
    return list(names)


def _scan(text: str) -> list[Token]:
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            hint = _HINTS.get(text[at], "")
            raise error(text, at, f"can't read {text[at]!r}{hint}")
        tokens.append(Token(match[match.lastgroup], match.lastgroup, match.start(match.lastgroup)))
        at = match.end()
    return tokens


def _check_brackets(text: str, tokens: list[Token]) -> None:
    opened: list[Token] = []
    for token in tokens:
        if token.text in _OPENING:
            opened.append(token)
            if len(opened) > _DEEPEST:
                raise error(text, token.at, f"more than {_DEEPEST} brackets are open: simplify it")
        elif token.text in _CLOSING:
            if not opened or _OPENING[opened[-1].text] != token.text:
                raise error(text, token.at, f"{token.text!r} closes nothing that was opened")
            opened.pop()
    if opened:
        raise error(text, opened[-1].at, f"{opened[-1].text!r} is never closed")


def _quote(before: Token, token: Token) -> str:
    """Advice for two adjacent names, which may be one name with a space."""
    if before.kind != "name" or token.kind != "name":
        return ""
    return f"; if it is one column, put it in backticks: `{before.text} {token.text}`"


def _check_operands(text: str, tokens: list[Token]) -> None:
    """Raises if two operators or two operands are adjacent, or an operand is missing at the end."""
    operand, before = False, Token("", "start", 0)
    for token in tokens:
        opens = token.kind != "operator" or token.text in "({"
        if opens and operand and token.text != "(":
            what = f"expected an operator such as + before {token.text!r}{_quote(before, token)}"
            raise error(text, token.at, what)
        if opens:
            operand = token.kind != "operator"
        elif token.text in _CLOSING:
            if not operand and before.text != "(":
                raise error(text, token.at, f"something is missing before {token.text!r}")
            operand = True
        else:
            unary = token.text in "+-" and before.text in ("", "~", "(", ",", "=", "+", "|", "||")
            unary = unary and not (token.text == "+" and before.text == "+")
            first = token.text == "~" and before.kind == "start"
            if not operand and not unary and not first:
                raise error(text, token.at, f"something is missing before {token.text!r}")
            operand = False
        before = token
    if tokens and not operand:
        raise error(text, len(text.rstrip()), f"something is missing after {before.text!r}")


def _left(
    text: str, tokens: list[Token], tilde: Token
) -> tuple[str, str | None, str | None, str | None]:
    """Response, trials, weights and censoring."""
    if not tokens:
        raise error(text, tilde.at, "there is no response before ~")
    bars = [t for t in tokens if t.text in ("|", "||")]
    depth = 0
    for token in tokens[: tokens.index(bars[0]) if bars else None]:
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text in _NOT_IN_RESPONSES or (token.text in ",=" and not depth):
            what = f"{token.text!r} has no meaning in a response: make a column of it first"
            raise error(text, token.at, what)
    end = bars[0].at if bars else tilde.at
    response = text[tokens[0].at : end].strip()
    found = _additions(text[end + 1 : tilde.at]) if bars else {}
    if found is None:
        raise error(
            text, end, "after | a response takes trials(column), weights(column) and cens(column)"
        )
    proportion = re.fullmatch(r"(\w+)\s*\(([^,()]+),([^,()]+)\)", response)
    if proportion and proportion[1] in PROPORTIONS:
        response, found["trials"] = proportion[2].strip(), proportion[3].strip()
    column = lambda name: unquoted(found[name]) if name in found else None
    return response, column("trials"), column("weights"), column("cens")


def _additions(text: str) -> dict[str, str] | None:
    """The columns in `trials(n) + weights(w)`; None for any other text."""
    calls = [re.fullmatch(r"\s*(\w+)\s*\(([^()]*)\)\s*", part) for part in text.split("+")]
    found = {c[1]: c[2].strip() for c in calls if c and c[1] in ADDITIONS and c[2].strip()}
    return found if len(found) == len(calls) else None


def _right(text: str, tokens: list[Token], tilde: Token) -> tuple[str, tuple[GroupingTerm, ...]]:
    """Common part and grouping terms."""
    places = _grouping_terms(text, tokens)
    if not places:
        what = "there is no grouping term such as (1 | user); add one"
        raise error(text, len(text.rstrip()), what)
    common, end, terms = "", tilde.at + 1, []
    for opening, bar, closing in places:
        group = text[opening.at + 1 : bar.at].strip()
        factors = _factors(text, tokens, bar, closing)
        if not group:
            raise error(
                text, bar.at, "there are no effects before |; write (1 | g) for an intercept"
            )
        before = text[end : opening.at].rstrip()
        if (common or before) and (before or common)[-1] != "+":
            raise error(text, opening.at, "a grouping term is added with +")
        after = text[closing.at + 1 :].strip()
        if after and after[0] not in "+-":
            raise error(text, closing.at + 1, "expected + after a grouping term")
        common = f"{common} {before}".strip() if before.strip() != "+" else common
        end = closing.at + 1
        terms += [GroupingTerm(group, columns, bar.text == "||") for columns in factors]
    before, after = common.strip("+ "), text[end:].strip()
    common = f"{before} {after}" if before else after.removeprefix("+")
    return common.strip() or "1", tuple(terms)


def _grouping_terms(text: str, tokens: list[Token]) -> list[tuple[Token, Token, Token]]:
    """The opening, the bar and the closing of every grouping term."""
    terms, opened = [], []
    for token in tokens:
        if token.text in _OPENING:
            opened.append((token, []))
        elif token.text in ("|", "||"):
            if not opened:
                raise error(text, token.at, "put a grouping term in parentheses: (1 + x | user)")
            if opened[-1][1]:
                raise error(text, token.at, "a grouping term has one bar")
            opened[-1][1].append(token)
        elif token.text in _CLOSING:
            opening, bars = opened.pop()
            if bars and opened:
                raise error(text, opening.at, "a grouping term can't be inside another bracket")
            if bars:
                terms.append((opening, bars[0], token))
    return terms


def _factors(text: str, tokens: list[Token], bar: Token, closing: Token) -> list[tuple[str, ...]]:
    """The columns of each factor right of a bar: a:b is one factor, a/b are the two a and a:b."""
    found = [t for t in tokens if bar.at < t.at < closing.at]
    names, operators = found[::2], found[1::2]
    kinds = {operator.text for operator in operators}
    plain = all(token.kind == "name" for token in names) and len(names) == len(operators) + 1
    if not plain or len(kinds) > 1 or not kinds <= {":", "/"}:
        where = next((t for t in operators if t.text not in (":", "/")), found[:2][-1])
        many = where.text in ("*", "+", ":", "/")
        cure = "write a term for each, (1 | a) + (1 | b)" if many else "name a column"
        what = "expected one grouping column after |, or a:b, or a/b"
        raise error(text, where.at, f"{what}: {cure}")
    columns = tuple(unquoted(token.text) for token in names)
    if len(set(columns)) < len(columns):
        raise error(text, names[0].at, "a grouping column is named twice in one term")
    nested = "/" in kinds
    return [columns[: i + 1] for i in range(len(columns))] if nested else [columns]
