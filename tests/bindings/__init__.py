"""Bindings as a user writes them, with their templates beside them: what the design promises, kernel by kernel.

`first` holds the fifteen that every release must bind and run, `more` the rest of the design's table.
"""
