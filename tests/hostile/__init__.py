"""Hostile inputs: what users, files and circumstances do to the library, and what it answers.

    python -m tests.hostile                     # all kinds, a table at the end
    python -m tests.hostile --kind formulas --show      # one kind, with every message
    python -m tests.hostile --only "poly"       # the cases whose name has that text

Each module of this folder with a function `cases()` is a kind, named by the module. To add a kind, add
such a module; to add a case, add a line to one:

    def cases():
        yield Case("column that is not there", lambda: fit("y ~ zz + (1 | g)"), says=["zz", "no column"])
        yield Case("column of decimals", lambda: read(decimals), right=lambda groups: len(groups) == 8)

`says` are texts that the error must have: the user's own name for the thing, and what to do. `right` is
called with what the case returns; false, or an AssertionError, is a wrong answer. With both, either will
do. `warns` is a text that a warning must have in addition. A case is
- clear: an error that we raise, in words that have all of `says`; or the right answer;
- unclear: the error of another library, an error without those words, or the refusal of good input;
- wrong: an answer where an error was due, or another answer than the right one.
Cases run in one process and share what was compiled: keep to the shapes that `data.py` offers. Those that
need a process of their own use `python` of `case.py`, those of the command `command`.
"""
