"""Pictures as SVG text: pure functions from the state of a run, or from a table's facts, to `str`.

They use neither widgets nor Spark. Colours follow the notebook's theme, shape and colour carry the
same information, and `<title>` elements show details on hover. `still` can render every element as
a PNG, for readers without a kernel.
"""
