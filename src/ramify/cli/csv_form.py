"""How a CSV file is written, as the options of the command say it."""

import codecs
from typing import NamedTuple


class CsvForm(NamedTuple):
    """How a CSV file is written."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf8"
    comment: str = ""  # lines that begin so are left out; "" if there are none


USUAL = CsvForm()


def csv_form(delimiter: str, decimal: str, encoding: str, comment: str = "") -> CsvForm:
    """A form from the options of the command; raises where there is no such form."""
    delimiter = {"tab": "\t", r"\t": "\t"}.get(delimiter, delimiter)
    if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
        raise ValueError(f'--delimiter {delimiter!r}: expected one character, such as ";", or tab.')
    if decimal not in (".", ",") or decimal == delimiter:
        also = ' With --decimal "," pass --delimiter ";" or tab.' * (decimal == delimiter)
        raise ValueError(f'--decimal {decimal!r}: expected "." or ",".{also}')
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(
            f"--encoding {encoding!r} is not known: expected utf-8, utf-16, latin-1 or another."
        ) from None
    if comment and (not comment.strip() or comment[0] in f'"{delimiter}\r\n'):
        raise ValueError(f'--comment {comment!r}: expected how comment lines begin, such as "#".')
    encoding = "utf8" if encoding.lower() == "utf-8" else encoding
    return CsvForm(delimiter, decimal, encoding, comment)
