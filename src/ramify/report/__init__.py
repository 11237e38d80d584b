"""One self-contained HTML page about a fit, which opens offline and asks no host for anything."""

from ramify.report.page import write_report as write_report
