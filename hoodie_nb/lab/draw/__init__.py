"""Pictures as SVG text: pure functions from the state of a run, or from a table's facts, to `str`.

They know neither widgets nor Spark. Colours follow the notebook's theme, what a shape says its
colour says too, and `<title>` elements tell on hovering what there was no room for. Every element
is one that `still` can turn into a PNG for readers without a kernel.
"""
