"""Pictures from numbers: Plotly figures in the page's colours, for the report and for notebooks.

May import: numerics, data.
"""
