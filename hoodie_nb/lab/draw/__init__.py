"""Pictures as SVG text: pure functions from a run's state, or a table's facts, to `str`.

They use neither widgets nor Spark. Colours follow the notebook's theme, shape and colour carry the
same information, and `<title>` elements show details on hover. `still` can render every element as
a PNG, for readers without a kernel.
"""
